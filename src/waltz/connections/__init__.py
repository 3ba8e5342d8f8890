"""How a process reaches a cluster: discovery, connections, handshakes, heartbeats, requests."""
