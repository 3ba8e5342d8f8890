"""One partition of a client: its machine, and the shell that runs it."""
