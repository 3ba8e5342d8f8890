"""The way to one node."""
