"""The outbox: rows that an application commits in its own database, relayed to the log once."""
