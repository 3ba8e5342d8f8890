"""Partitions at work: their machines with messages, callbacks and room for submits."""
