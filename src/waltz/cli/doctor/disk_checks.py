"""Checks of a directory for a storage node: its file system, its space, the time of a sync."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from waltz.bench.calibration import BLOCK_BYTES, measure_syncs
from waltz.cli.doctor.finding import Checked
from waltz.storage.directory.space import FreeMinimum

SYNCS: Final = 100
"""Synced writes of 4 KiB that are timed."""

SYNC_SECONDS_SLOW: Final = 0.02
"""A median above this is called wrong: each append waits for at least one sync of two replicas."""

IN_MEMORY: Final = frozenset(("tmpfs", "ramfs", "rootfs"))
"""File systems that lose everything with the power."""

OVER_A_NETWORK: Final = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "ceph", "glusterfs")
)
"""File systems whose syncs and locks depend on a server that is not seen from here."""

MOUNTS: Final = Path("/proc/self/mountinfo")

OCTAL: Final = re.compile(r"\\([0-7]{3})")
"""The kernel's spelling of blanks and backslashes in the names of `MOUNTS`; other characters stand
there as they are."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """The file system, space and syncs of a directory, as read and measured."""

    file_system: str | None
    """The kernel's name of it; None: it is not known."""
    free_bytes: int
    total_bytes: int
    sync_seconds: tuple[float, ...]


def existing(directory: Path) -> Path:
    """Return the directory, or the nearest one above it that exists; a path that is there and is no
    directory is returned, too: nobody can make a directory in its place."""
    return next(each for each in (directory, *directory.parents) if os.path.lexists(each))


def file_system_of(directory: Path, mounts: str) -> str | None:
    """Return the kind of file system that the directory lies on, by the text of
    `/proc/self/mountinfo`; None: the text does not say."""
    found: tuple[int, str] | None = None
    for line in mounts.split("\n"):
        place, separator, kind = line.partition(" - ")
        fields = place.split(" ")
        if not separator or len(fields) < 5:
            continue
        mounted = Path(OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        # The last mount at the deepest place is the one that is seen.
        if directory.is_relative_to(mounted) and (found is None or len(mounted.parts) >= found[0]):
            found = len(mounted.parts), kind.split()[0]
    return None if found is None else found[1]


def kind_finding(subject: str, file_system: str | None) -> Checked:
    if file_system is None:
        cause = f"{MOUNTS} does not say what it lies on"
        remedy = "use a directory on a local disk"
        return Checked("disk-kind", subject, None, "unknown", cause, remedy)
    if file_system in IN_MEMORY:
        cause = "the file system is in memory: its files end with the power"
        remedy = "use a directory on a disk"
        return Checked("disk-kind", subject, False, file_system, cause, remedy)
    if file_system.partition(".")[0] in OVER_A_NETWORK:
        cause = "whether a sync and a lock hold is decided by a server, which is not seen from here"
        remedy = "use a directory on a local disk"
        return Checked("disk-kind", subject, None, file_system, cause, remedy)
    return Checked("disk-kind", subject, True, file_system)


def space_finding(subject: str, state: DiskState, minimum: FreeMinimum) -> Checked:
    wanted = minimum.of(state.total_bytes)
    said = f"{state.free_bytes} of {state.total_bytes} bytes are free"
    if state.free_bytes < wanted:
        cause = f"storage.diskFreeMin keeps {wanted} bytes free: the node refuses appends"
        remedy = "make room, or use a larger disk"
        return Checked("disk-space", subject, False, said, cause, remedy)
    return Checked("disk-space", subject, True, f"{said}, {wanted} are to stay free")


def sync_finding(subject: str, sync_seconds: tuple[float, ...]) -> Checked:
    middle, longest = median(sync_seconds), max(sync_seconds)
    said = (
        f"{len(sync_seconds)} writes of {BLOCK_BYTES} bytes with fdatasync:"
        f" median {middle * 1e6:.0f} us, longest {longest * 1e6:.0f} us"
    )
    if middle > SYNC_SECONDS_SLOW:
        cause = f"a median above {SYNC_SECONDS_SLOW * 1000:.0f} ms: each append waits for syncs"
        remedy = "use a disk with a faster sync, or find out what else uses this one"
        return Checked("disk-sync", subject, False, said, cause, remedy)
    return Checked("disk-sync", subject, True, said)


def read_disk(directory: Path) -> DiskState:
    """Read and measure; a file is written below the directory, and removed. Raises OSError."""
    resolved = directory.resolve()
    mounts = os.fsdecode(MOUNTS.read_bytes()) if MOUNTS.exists() else ""
    found = os.statvfs(resolved)
    return DiskState(
        file_system_of(resolved, mounts),
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        tuple(measure_syncs(resolved, BLOCK_BYTES, SYNCS)),
    )


def failure_finding(directory: str, place: Path, error: OSError) -> Checked:
    """Return what follows from the error with which a directory could not be measured."""
    causes = {
        errno.ENOSPC: ("the disk is full", "make room, or use a larger disk"),
        errno.EDQUOT: ("a quota is used up", "make room, or raise the quota"),
        errno.EROFS: ("the file system is read-only", "mount it for writing; see why it is not"),
        errno.EIO: ("the disk fails", "look at the kernel's log, and use another disk"),
    }
    user = (
        "this user cannot write files there",
        "run the check as the user of the storage node, or correct owner and mode",
    )
    other = ("the system refuses it", "use another directory, or find out why it is refused")
    is_users = error.errno in (errno.EACCES, errno.EPERM)
    cause, remedy = user if is_users else causes.get(error.errno or 0, other)
    said = f"{place}: {error.strerror}"
    return Checked("disk-sync", directory, False, said, cause, remedy)


def disk_findings(directory: str, minimum: FreeMinimum) -> Iterator[Checked]:
    """Measure a directory, or the nearest one above it that exists, and yield what is found."""
    place = existing(Path(directory).absolute())
    try:
        if not place.is_dir():
            cause = f"{place} is there, and is no directory"
            remedy = "name another directory, or move that away"
            yield Checked("disk-kind", directory, False, "no directory", cause, remedy)
            return
        state = read_disk(place)
    except OSError as error:
        yield failure_finding(directory, place, error)
        return
    yield kind_finding(directory, state.file_system)
    yield space_finding(directory, state, minimum)
    yield sync_finding(directory, state.sync_seconds)
