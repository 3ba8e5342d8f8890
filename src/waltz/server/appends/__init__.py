"""What is appended: locks, undecided appends, and what becomes of each."""
