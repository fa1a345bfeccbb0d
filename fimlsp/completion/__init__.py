"""From a snapshot to a suggestion: one request's life, when to stop, what to cut."""
