"""Contexts between their submit and their end."""
