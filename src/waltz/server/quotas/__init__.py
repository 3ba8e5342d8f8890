"""Quotas: buckets of each principal, and the connections that wait for them."""
