"""One storage node: the replicas of its partitions on disk, and the two ports it serves."""
