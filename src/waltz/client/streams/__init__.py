"""What the stream connections of a client carry."""
