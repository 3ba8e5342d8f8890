"""Calling the application: callbacks, transactions, and what happens when they fail."""
