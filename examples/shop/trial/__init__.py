"""Runs a shop under load while its processes are killed, and judges what came of it."""
