"""The audit log: what was denied and what was administered, in a file that shows cut-out lines."""
