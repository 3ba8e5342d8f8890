"""The cluster as its servers tell it."""
