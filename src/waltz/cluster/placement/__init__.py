"""The placement of storage nodes, as the coordinator keeps it."""
