"""Takes a whole cluster out of the coordinator."""
