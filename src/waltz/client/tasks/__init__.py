"""Tasks that live and end together."""
