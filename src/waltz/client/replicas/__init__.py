"""What storage nodes hold, read from each by itself."""
