"""What a server tells clients of its cluster."""
