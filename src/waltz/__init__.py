"""Waltz: a distributed, replicated write-ahead log for transactions, with optimistic locking."""
