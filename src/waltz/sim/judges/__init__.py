"""What is written down during a simulated run, and the judges of it."""
