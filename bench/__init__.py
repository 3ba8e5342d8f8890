"""Benchmarks: `python -m bench`. Every figure stands beside what this machine can do at all."""
