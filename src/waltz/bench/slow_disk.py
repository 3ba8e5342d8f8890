"""A disk that takes longer to sync, in a real storage node: for trials only.

The product has no such knob. `write_hook` leaves a `sitecustomize.py`, which Python runs at its
start where it is on the path; it calls `install`, which slows the one storage node that the
environment names and leaves every other process as it is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ENVIRONMENT: Final = "WALTZ_BENCH_SLOW_SYNC"
HOOK: Final = "import waltz.bench.slow_disk\n\nwaltz.bench.slow_disk.install()\n"


def write_hook(directory: Path, storage: str, seconds: float) -> dict[str, str]:
    """Leave the hook in `directory` and return the environment of a cluster whose storage node of
    that name takes `seconds` longer for each sync."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(HOOK)
    paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), ENVIRONMENT: f"{storage}:{seconds}"}


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
    from waltz.system.disk import RealFile

    sync = RealFile.sync

    def slow_sync(file: RealFile) -> None:
        time.sleep(seconds)
        sync(file)

    RealFile.sync = slow_sync  # type: ignore[assignment, method-assign]
