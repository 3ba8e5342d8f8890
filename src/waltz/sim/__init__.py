"""The simulated host: a whole cluster in one process, on virtual time, decided by one seed.

It runs the very shells of the product and is imported by nothing but `waltz.testing`.
"""
