"""The console: a cluster as pages for a browser, and the same on a terminal."""
