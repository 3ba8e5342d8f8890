"""The lock of those who change what a cluster is."""
