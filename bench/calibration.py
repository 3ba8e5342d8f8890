"""What this machine does without us: the yardstick of every other figure of the same run."""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from zlib import crc32

SYNCS = 200
BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Calibration:
    """Medians of this run, in seconds."""

    sync_seconds: float
    """One `pwrite` of 4 KiB with `fdatasync`."""
    pack_seconds: float
    """One `struct.pack` of a record header and the CRC-32 of 128 bytes."""

    def lines(self) -> list[str]:
        return [
            f"calibration: write + fdatasync of 4 KiB {self.sync_seconds * 1e6:.0f} us",
            f"calibration: struct.pack + crc32 of 128 B {self.pack_seconds * 1e9:.0f} ns",
        ]


def timed(function: Callable[[], object], count: int) -> float:
    """Return the seconds one of `count` calls of `function` takes, the median of five rounds."""
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            function()
        rounds.append((time.perf_counter() - start) / count)
    return median(rounds)


def calibrate() -> Calibration:
    return Calibration(measure_sync(), measure_pack())


def measure_sync() -> float:
    block = os.urandom(BLOCK_BYTES)
    taken = []
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as directory:
        descriptor = os.open(Path(directory) / "file", os.O_RDWR | os.O_CREAT)
        try:
            for number in range(SYNCS):
                start = time.perf_counter()
                os.pwrite(descriptor, block, number * BLOCK_BYTES)
                os.fdatasync(descriptor)
                taken.append(time.perf_counter() - start)
        finally:
            os.close(descriptor)
    return median(taken)


def measure_pack() -> float:
    layout = struct.Struct(">q16siiI")
    data = bytes(128)
    request_id = bytes(16)
    return timed(lambda: layout.pack(1, request_id, 2, len(data), crc32(data)), 20_000)
