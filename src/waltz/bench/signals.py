"""SIGTERM and SIGHUP end a measurement as Ctrl-C does: its processes end, its files are deleted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let the first of these signals raise SystemExit in the block, with 128 + its number.

    Later ones are ignored until the block ends: they must not cut short what the first one began. A
    signal that was ignored before, for example under `nohup`, stays ignored. For the main thread.
    """
    former = {
        number: handler
        for number in ENDING
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }

    def end(number: int, frame: FrameType | None) -> None:
        for each in former:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    try:
        for number in former:
            signal.signal(number, end)
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
