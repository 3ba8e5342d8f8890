"""The operating system's clocks."""

from __future__ import annotations

import time


class RealClock:
    """Implements `host.Clock`."""

    now = staticmethod(time.monotonic)

    def wall_milliseconds(self) -> int:
        return time.time_ns() // 1_000_000
