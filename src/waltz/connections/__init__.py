"""Connections from a process to a cluster: discovery, handshakes, heartbeats, requests."""
