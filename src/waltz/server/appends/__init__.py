"""Appends: their locks, those that are undecided, and the outcome of each."""
