"""A coordinator that is asked now and then, by who needs no session with it."""
