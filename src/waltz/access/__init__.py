"""Permissions: the principal of a connection, the policy, its decisions, a verb per message."""
