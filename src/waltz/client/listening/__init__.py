"""Telling an application what becomes of its client."""
