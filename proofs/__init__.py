"""Shows that the simulator finds mistakes: seeded bugs, hunts, the model check, the evidence."""
