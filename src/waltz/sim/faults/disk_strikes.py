"""Carries out the faults of disks.

Owns what a fault does to the bytes, the room and the speed of a machine's disk. The plan chooses
the disk, and ensures that no more than a minority is harmed.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from posixpath import basename
from typing import Final, assert_never
from zlib import crc32

from waltz.sim.faults.disk_plans import FAILURE_SECONDS_MAX
from waltz.sim.faults.kinds import (
    BitFlips,
    DiskFailure,
    FullDisk,
    LostDisk,
    LostFiles,
    OldDisk,
    SlowDisk,
)
from waltz.sim.faults.process_strikes import start_again
from waltz.sim.faults.strike_record import StrikeRecord
from waltz.sim.simulated_disk import BOUNDLESS, DiskOperation, PartlyDoneError, SimulatedDisk
from waltz.sim.sites import Site, Sites

DATA_SUFFIXES: Final = (".seg", ".idx")
"""The suffixes of the files in which bits are flipped: data, and their index."""

FILE_HEADER_BYTES: Final = 128
"""Bytes before the records of a data file and before the entries of an index."""

RECORD_HEAD_BYTES: Final = 36
"""Bytes of a record before its data."""

OUTDATED_SECONDS_MAX: Final = 30.0
"""Seconds that an old disk waits to be put back."""

OUTDATED_LOOKS: Final = 300
"""Checks, within that time, whether the disk can be put back."""


class DiskStrikes:
    """Faults of the machines' disks."""

    def __init__(
        self,
        sites: Sites,
        record: StrikeRecord,
        is_outdated: Callable[[str, SimulatedDisk], bool],
    ) -> None:
        """`is_outdated`: whether the cluster can tell that a machine's disk is an old one."""
        self._sites = sites
        self._record = record
        self._is_outdated = is_outdated
        self.harmed: dict[str, None] = {}
        """The machines on whose disks something durable is gone or changed."""

    async def strike(
        self,
        fault: SlowDisk | DiskFailure | BitFlips | FullDisk | LostDisk | OldDisk | LostFiles,
    ) -> None:
        site = self._sites.site(fault.name)
        match fault:
            case SlowDisk():
                self._record.struck(fault, site.name)
                site.hindrances.append(fault.slowest_seconds)
                await asyncio.sleep(fault.seconds)
                site.hindrances.remove(fault.slowest_seconds)
            case DiskFailure():
                failing = FailingOperations(fault)
                site.disk_faults.append(failing)
                await failing.over()
                site.disk_faults.remove(failing)
                self._record.counts[type(fault).__name__] += failing.failed_count
                self._record.note("failures", site.name, failing.failed_count)
            case BitFlips():
                await self._flip(fault, site)
            case FullDisk():
                self._record.struck(fault, site.name)
                leave_room(site.disk, fault.room_bytes)
                await asyncio.sleep(fault.seconds)
                give_room(site.disk)
                self._record.note("room", site.name)
            case LostDisk() | OldDisk() | LostFiles():
                await self._replace_disk(fault, site)
            case _:
                assert_never(fault)

    async def _flip(self, fault: BitFlips, site: Site) -> None:
        for path in flip_bits(site.disk, fault):
            self._record.struck(fault, site.name, path)
            self.harmed[site.name] = None
        if fault.restarts and not site.is_struck:
            site.is_struck = True
            if not site.process.dead:
                self._sites.kill(site)
            await start_again(self._sites, site, 0.0)

    async def _replace_disk(self, fault: LostDisk | OldDisk | LostFiles, site: Site) -> None:
        old = self._sites.disk_after_power_cut(site)
        if isinstance(fault, OldDisk):
            await asyncio.sleep(fault.seconds)
        if site.is_struck:
            return
        site.is_struck = True
        self._record.struck(fault, site.name)
        self.harmed[site.name] = None
        if not site.process.dead:
            self._sites.kill(site)
        if isinstance(fault, LostDisk):
            site.disk = blank_disk(old)
        elif isinstance(fault, LostFiles):
            site.disk = without_newest(site.disk)
        elif await self._becomes_outdated(site, old):
            site.disk = old
        await start_again(self._sites, site, fault.pause_seconds)

    async def _becomes_outdated(self, site: Site, old: SimulatedDisk) -> bool:
        """Wait until the cluster has noted that the machine is away; return whether it has.

        A disk put back from a snapshot of the session that the cluster still believes the machine
        to be in cannot be told from one that lost power: its replica votes, and what it had
        acknowledged since is gone. No promise covers that (docs/decisions/0007), so the machine
        then comes back with the disk it had.
        """
        for _ in range(OUTDATED_LOOKS):
            if self._is_outdated(site.name, old):
                return True
            await asyncio.sleep(OUTDATED_SECONDS_MAX / OUTDATED_LOOKS)
        return False


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

    Records that rot are old, so the system has written out their index entries: those that it has
    not are written out first, and records whose entry a power cut has taken do not rot. Otherwise a
    rotten record would look like a torn write; no promise covers both at once
    (docs/decisions/0047). The entries of records behind may still get lost.
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
        index = path.removesuffix(DATA_SUFFIXES[0]) + DATA_SUFFIXES[1]
        is_data = path.endswith(DATA_SUFFIXES[0])
        entries = files.get(index, b"")
        size = _indexed_bytes(path, content, entries) if is_data else len(content)
        offset = min(int(byte_share * size), size - 1)
        if is_data and entries:
            written_out = disk.files.durable_contents().get(index) or b""
            if offset >= _indexed_bytes(path, content, written_out):
                disk.files.write_back(index)
        disk.damage(path, offset, bytes([content[offset] ^ (1 << bit % 8)]))
        met.append(path)
    return met


def _indexed_bytes(path: str, content: bytes, index: bytes) -> int:
    """Return where the last record that checks out and has an index entry ends in a data file, or
    its header if there is none."""
    first = int(basename(path).removesuffix(DATA_SUFFIXES[0]))
    for number in reversed(range((len(index) - FILE_HEADER_BYTES) // 8)):
        entry = FILE_HEADER_BYTES + 8 * number
        place = int.from_bytes(index[entry : entry + 8])
        head = content[place : place + RECORD_HEAD_BYTES]
        end = place + RECORD_HEAD_BYTES + int.from_bytes(head[28:32])
        checksum = content[end : end + 4]
        is_there = head[:8] == (first + number).to_bytes(8) and len(checksum) == 4
        if is_there and crc32(content[place:end]) == int.from_bytes(checksum):
            return end + 4
    return min(len(content), FILE_HEADER_BYTES)


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
