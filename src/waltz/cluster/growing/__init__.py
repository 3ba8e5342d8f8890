"""Writing down that a cluster has more partitions."""
