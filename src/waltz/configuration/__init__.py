"""The settings of operators: each key declared once, read from YAML and options, and judged."""
