"""How a storage node follows its cluster's number of partitions."""
