"""What a storage node does by itself."""
