"""What waits for one partition of a storage node."""
