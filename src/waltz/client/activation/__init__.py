"""Partitions that a client does not follow any more."""
