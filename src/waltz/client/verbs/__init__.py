"""The verbs for those who want a log and nothing else."""
