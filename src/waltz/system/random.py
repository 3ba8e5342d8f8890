"""Randomness from the operating system's secure source."""

from __future__ import annotations

from random import SystemRandom
from uuid import UUID, uuid4


class RealRandom:
    """Implements `host.Random`."""

    def __init__(self) -> None:
        self._source = SystemRandom()

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)

    def uuid(self) -> UUID:
        return uuid4()
