"""Appends on their way: submitted, batched, sent, and decided by the feed."""
