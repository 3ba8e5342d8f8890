"""The parts of an installation: the pins with their hashes, and the bills of materials."""
