"""What tools have done with the partitions of a storage node."""
