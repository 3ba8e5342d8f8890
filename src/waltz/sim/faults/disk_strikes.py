"""Carries out the faults of disks.

Owns what a fault does to the bytes, the room and the speed of a machine's disk. The plan chooses
the disk, and ensures that no more than a minority is harmed.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from typing import Final

from waltz.sim.faults.disk_plans import FAILURE_SECONDS_MAX
from waltz.sim.faults.kinds import BitFlips, DiskFailure
from waltz.sim.simulated_disk import BOUNDLESS, DiskOperation, PartlyDoneError, SimulatedDisk

DATA_SUFFIXES: Final = (".seg", ".idx")
"""The suffixes of the files in which bits are flipped."""


class FailingOperations:
    """A fault of a disk that lets some operations pass, fails the next ones and is over then."""

    def __init__(self, failure: DiskFailure) -> None:
        self._operations = {DiskOperation(value) for value in failure.operations}
        self._passed_left = failure.passed
        self._count_left = failure.count
        self._done = failure.done
        self.failed_count = 0
        self._is_over = asyncio.Event()

    def __call__(self, operation: DiskOperation, path: str) -> None:
        if operation not in self._operations or not self._count_left:
            return
        if self._passed_left:
            self._passed_left -= 1
            return
        self._count_left -= 1
        self.failed_count += 1
        if not self._count_left:
            self._is_over.set()
        error = PartlyDoneError(errno.EIO, f"the disk fails to {operation.value}", path)
        error.done = self._done
        raise error

    async def over(self) -> None:
        """Return once all operations have failed that should, or no more are expected."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAILURE_SECONDS_MAX):
                await self._is_over.wait()


def flip_bits(disk: SimulatedDisk, flips: BitFlips) -> list[str]:
    """Flip each bit that `flips` names in one of the data files; return a description of each.

    Rotten bytes are old, so the system has written out the index of their records: the files are
    written back first. Otherwise a power cut that takes an index entry would make a rotten record
    look like a torn write; no promise covers both at once (docs/decisions/0005).
    """
    files = {
        path: content
        for path, content in sorted(disk.contents().items())
        if content and path.endswith(DATA_SUFFIXES)
    }
    met = []
    for file_share, byte_share, bit in flips.places:
        if not files:
            break
        path = _at(file_share, [*files])
        content = disk.content(path)
        offset = min(int(byte_share * len(content)), len(content) - 1)
        disk.damage(path, offset, bytes([content[offset] ^ (1 << bit % 8)]))
        index = path.removesuffix(".seg") + ".idx"
        if index in files:
            disk.write_back(index)
        met.append(path)
    return met


def _at(share: float, names: list[str]) -> str:
    return names[min(int(share * len(names)), len(names) - 1)]


def leave_room(disk: SimulatedDisk, room_bytes: int) -> None:
    """Let everything but `room_bytes` of the disk be taken by others."""
    disk.capacity_bytes = BOUNDLESS.total_bytes
    used = BOUNDLESS.total_bytes - disk.free_bytes
    disk.capacity_bytes = used + room_bytes


def give_room(disk: SimulatedDisk) -> None:
    disk.capacity_bytes = None


def without_newest(disk: SimulatedDisk) -> SimulatedDisk:
    """The disk without both files of each partition's newest segment."""
    contents = disk.contents()
    newest: dict[str, str] = {}
    for path in sorted(contents):
        if path.endswith(DATA_SUFFIXES[0]):
            newest[path.rpartition("/")[0]] = path.removesuffix(DATA_SUFFIXES[0])
    lost = {name + suffix for name in newest.values() for suffix in DATA_SUFFIXES}
    left = {path: data for path, data in contents.items() if path not in lost}
    return SimulatedDisk(contents=left)


def blank_disk(disk: SimulatedDisk) -> SimulatedDisk:
    """A new disk in the place of `disk`, with its topmost directories alone."""
    roots = [
        path
        for path, content in disk.contents().items()
        if content is None and path != "/" and path.count("/") == 1
    ]
    return SimulatedDisk(roots)
