"""The record of a simulated run, and the judges of it."""
