"""What an operator may set: each key declared once, read from YAML and options, and judged."""
