"""The clients of a server: their connections, and what they are told of the cluster."""
