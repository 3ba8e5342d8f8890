"""A token bucket whose takers queue: nobody is refused, each is told when its turn has come.

Owns one rate. A taker's amount is reserved when it asks, and admitted once the bucket has given as
many tokens as all up to this taker have reserved. So takers are admitted in order, and in any
period of `t` seconds at most `rate * t` and the burst, or one amount if that is larger.
"""

from __future__ import annotations

from typing import Final

BURST_SECONDS: Final = 2.0
"""A bucket that was left alone holds the tokens of this time, and not more."""


class TokenBucket:
    """See the module. `rate` is in tokens per second."""

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._level = rate * BURST_SECONDS
        """Tokens given and not reserved; below 0: reserved and not given."""
        self._reserved = 0
        self._at = now

    def take(self, amount: int, now: float) -> int:
        """Reserve the amount; return the taker's position in the queue, for `wait_seconds`."""
        self._fill(now)
        self._level -= amount
        self._reserved += amount
        return self._reserved

    def has(self, amount: int, now: float) -> bool:
        """Whether a taker of the amount would be admitted at once."""
        self._fill(now)
        return self._level >= amount

    def wait_seconds(self, position: int, now: float) -> float:
        """Return the time until the taker at this position is admitted; 0: it is."""
        self._fill(now)
        missing = self._reserved - position + self._level
        return 0.0 if missing >= 0 else -missing / self.rate

    def change_rate(self, rate: int, now: float) -> None:
        """Those who wait go on waiting at the new rate."""
        self._fill(now)
        self.rate = rate
        self._level = min(self._level, rate * BURST_SECONDS)

    def is_full(self, now: float) -> bool:
        """Whether the bucket is as a new one: forgetting it gives nobody anything."""
        self._fill(now)
        return self._level >= self.rate * BURST_SECONDS

    def _fill(self, now: float) -> None:
        given = self.rate * max(0.0, now - self._at)
        self._level = min(self._level + given, self.rate * BURST_SECONDS)
        self._at = max(self._at, now)
