"""Ranges of the log as columns, for pipelines and tools."""
