"""The metadata of a cluster in its coordinator: values, their bytes, and the rules of change."""
