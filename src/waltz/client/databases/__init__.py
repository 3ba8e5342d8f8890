"""Callbacks for SQL databases."""
