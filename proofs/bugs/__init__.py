"""Seeded bugs: mistakes that the simulator must find."""
