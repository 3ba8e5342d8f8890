"""The doors of `waltz.host` on a real operating system."""
