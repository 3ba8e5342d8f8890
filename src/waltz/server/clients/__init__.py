"""The clients of a server and what carries their connections."""
