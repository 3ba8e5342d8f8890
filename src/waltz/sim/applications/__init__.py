"""The simulated applications: what their clients do, and what they keep."""
