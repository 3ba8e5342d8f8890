"""Bodies and high-water marks, asked for on the second connection to each server."""
