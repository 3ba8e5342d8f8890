"""The simulated applications: the work of their clients, and the state that they keep."""
