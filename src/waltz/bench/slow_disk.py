"""A disk that takes longer to sync, in a real storage node: for trials only.

The product has no such switch. Where the hook (`hook.py`) calls `install` it slows the one storage
node that the environment names, and leaves every other process unchanged.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from waltz.bench.hook import variable

ENVIRONMENT: Final = variable(__name__)


def told(storage: str, seconds: float) -> str:
    """Return the hook's value that makes the storage node of that name take `seconds` longer for
    each sync."""
    return f"{storage}:{seconds}"


def delay(environment: Mapping[str, str], arguments: Sequence[str]) -> float:
    """Return how many seconds longer this process takes to sync; 0 if it is not meant."""
    storage, _, seconds = environment.get(ENVIRONMENT, "").partition(":")
    is_meant = "storage" in arguments and any(Path(each).name == storage for each in arguments)
    return float(seconds) if storage and is_meant else 0.0


def install() -> None:
    """Slow the syncs of this process if it is meant."""
    seconds = delay(os.environ, sys.orig_argv)
    if not seconds:
        return
    from waltz.system.real_disk import RealFile

    sync = RealFile.sync

    def slow_sync(file: RealFile) -> None:
        time.sleep(seconds)
        sync(file)

    RealFile.sync = slow_sync  # type: ignore[assignment, method-assign]
