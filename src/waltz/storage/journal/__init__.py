"""The journal of a partition: times, sessions and clients, next to its records."""
