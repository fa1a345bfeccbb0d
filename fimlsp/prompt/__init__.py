"""From text to prompt token ids, one template row per model family."""
