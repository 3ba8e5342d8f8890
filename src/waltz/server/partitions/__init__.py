"""The partitions of a server at work."""
