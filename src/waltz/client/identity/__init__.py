"""The client ID that a client uses."""
