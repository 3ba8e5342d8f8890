"""The same loads against what a user would pick instead, as far as it can be run here."""
