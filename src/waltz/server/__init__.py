"""One server: locks, mounts, feeds, and the shell that runs them for its partitions."""
