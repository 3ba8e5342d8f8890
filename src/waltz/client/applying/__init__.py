"""Calls to the application: callbacks, transactions, and the handling of their failures."""
