"""Model files: the catalogue, fetching, checking."""
