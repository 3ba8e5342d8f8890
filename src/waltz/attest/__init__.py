"""Proofs of the log for third parties: Merkle trees, signed checkpoints, witnesses."""
