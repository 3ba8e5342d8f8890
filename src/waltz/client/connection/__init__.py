"""Connections from this process to servers."""
