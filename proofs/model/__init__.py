"""A small world around the product's own store machines, small enough to visit every state of."""
