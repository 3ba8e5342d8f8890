"""Faults of simulated runs: kinds, the plans that draw them, the strikes that carry them out."""
