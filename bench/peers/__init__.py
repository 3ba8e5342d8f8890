"""The same loads against the systems that a user might pick instead, as far as they can be run
here."""
