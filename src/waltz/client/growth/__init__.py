"""Adding partitions to a cluster that runs."""
