"""Questions to a process, one at a time."""
