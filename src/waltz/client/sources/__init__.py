"""Where a client learns what its cluster is."""
