"""Small values that the coordinator keeps for applications."""
