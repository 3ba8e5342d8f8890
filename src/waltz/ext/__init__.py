"""Waltz in web frameworks and object-relational mappers. A module per framework, which only that
module imports: each is behind an extra of its name."""
