"""A shop of three services that share a log: orders, payments and inventory (docs/shop.md)."""
