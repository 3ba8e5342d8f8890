"""Ready-made jobs that derive data from the log."""
