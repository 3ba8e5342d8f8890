"""Tests of Waltz in frameworks, with the real ones."""
