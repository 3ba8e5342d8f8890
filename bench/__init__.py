"""Benchmarks: `python -m bench`. Every figure is next to what this machine can do at all."""
