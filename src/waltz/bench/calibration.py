"""Measures what this machine does alone: the yardstick of every other figure of the same run."""

from __future__ import annotations

import os
import platform
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Final
from zlib import crc32

SYNCS: Final = 200
SYNCS_LARGE: Final = 40
BLOCK_BYTES: Final = 4096
BLOCK_BYTES_LARGE: Final = 2**20
ECHOES: Final = 2000
ECHO_BYTES: Final = 128
CALLS: Final = 20_000
ENTRIES: Final = 256


@dataclass(frozen=True, slots=True)
class Calibration:
    """Medians of this run, in seconds, and the version of Python."""

    sync_seconds: float
    """One `pwrite` of 4 KiB with `fdatasync`."""
    pack_seconds: float
    """One `struct.pack` of a record header and the CRC-32 of 128 bytes."""
    sync_seconds_p99: float
    sync_seconds_large: float
    """One `pwrite` of 1 MiB with `fdatasync`."""
    echo_seconds: float
    """128 bytes to another thread of this process and back, by TCP on the loopback address."""
    checksum_seconds: float
    """The CRC-32 of 1 MiB."""
    python: str
    """The interpreter: implementation and version."""
    call_seconds: float
    """One call of a method in Python, and what goes with it: see `Noting`."""

    def lines(self) -> list[str]:
        small = f"{self.sync_seconds * 1e6:.0f} us, p99 {self.sync_seconds_p99 * 1e6:.0f} us"
        return [
            f"calibration: write + fdatasync of 4 KiB {small}",
            f"calibration: write + fdatasync of 1 MiB {self.sync_seconds_large * 1e6:.0f} us",
            f"calibration: loopback echo of 128 B {self.echo_seconds * 1e6:.0f} us",
            f"calibration: crc32 of 1 MiB {self.checksum_seconds * 1e6:.0f} us",
            f"calibration: struct.pack + crc32 of 128 B {self.pack_seconds * 1e9:.0f} ns",
            f"calibration: {self.python}, a method call {self.call_seconds * 1e9:.0f} ns",
        ]


def timed(function: Callable[[], object], count: int) -> float:
    """Return the seconds of one of `count` calls of `function`, the median of five rounds.

    For functions that only compute: it is processor time, so that other users of the core do not
    count.
    """
    rounds = []
    for _ in range(5):
        start = time.thread_time()
        for _ in range(count):
            function()
        rounds.append((time.thread_time() - start) / count)
    return median(rounds)


def calibrate(directory: Path | None = None) -> Calibration:
    """Measure the machine and the disk of `directory`, by default the current one."""
    place = directory or Path.cwd()
    syncs = measure_syncs(place, BLOCK_BYTES, SYNCS)
    large = os.urandom(BLOCK_BYTES_LARGE)
    return Calibration(
        sync_seconds=median(syncs),
        pack_seconds=measure_pack(),
        sync_seconds_p99=quantiles(syncs, n=100)[98],
        sync_seconds_large=median(measure_syncs(place, BLOCK_BYTES_LARGE, SYNCS_LARGE)),
        echo_seconds=measure_echo(),
        checksum_seconds=timed(lambda: crc32(large), 20),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        call_seconds=timed(Noting().note, CALLS),
    )


def measure_syncs(directory: Path, size: int, count: int) -> list[float]:
    """Return how long each of `count` synced writes of `size` bytes takes at the end of a file."""
    block = os.urandom(size)
    taken = []
    with tempfile.TemporaryDirectory(dir=directory, prefix="bench-") as scratch:
        descriptor = os.open(Path(scratch) / "file", os.O_RDWR | os.O_CREAT)
        try:
            for number in range(count):
                start = time.perf_counter()
                os.pwrite(descriptor, block, number * size)
                os.fdatasync(descriptor)
                taken.append(time.perf_counter() - start)
        finally:
            os.close(descriptor)
    return taken


def measure_pack() -> float:
    layout = struct.Struct(">q16siiI")
    data = bytes(128)
    request_id = bytes(16)
    return timed(lambda: layout.pack(1, request_id, 2, len(data), crc32(data)), CALLS)


class Noting:
    """The operations that Python does most around an append: calls of methods, attributes that are
    read and set, small tuples, a dictionary. All of it is the interpreter's own time."""

    def __init__(self) -> None:
        self._count = 0
        self._noted: dict[int, tuple[int, int]] = {}

    def note(self) -> tuple[int, int] | None:
        """Put a pair into the dictionary and return the one that was in its place."""
        number = self._count
        self._count = number + 1
        place = self._place(number)
        former = self._noted.get(place)
        self._noted[place] = (number, place)
        return former

    def _place(self, number: int) -> int:
        return number % ENTRIES


def measure_echo() -> float:
    block = bytes(ECHO_BYTES)
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        echoing = threading.Thread(target=_echo, args=(listener,), daemon=True)
        echoing.start()
        with socket.create_connection(listener.getsockname()) as caller:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(ECHOES):
                start = time.perf_counter()
                caller.sendall(block)
                caller.recv(ECHO_BYTES, socket.MSG_WAITALL)
                taken.append(time.perf_counter() - start)
        echoing.join()
    return median(taken)


def _echo(listener: socket.socket) -> None:
    answering, _ = listener.accept()
    with answering:
        answering.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while block := answering.recv(ECHO_BYTES, socket.MSG_WAITALL):
            answering.sendall(block)
