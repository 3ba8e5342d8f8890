"""Connections from a server to the storage nodes."""
