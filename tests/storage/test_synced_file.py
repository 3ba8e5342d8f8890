"""A small file whose changes are durable at once, and which takes none after a failed one."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from random import Random

import pytest

from waltz.errors import SegmentFailedError
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.storage.directory.synced_file import SyncedFile

PATH = "/data/file"


class World:
    """A disk that fails the operations it is told to, one after the other."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(["/data"])
        self.failures: list[tuple[DiskOperation, int]] = []
        file = self.disk.open(PATH, create=True)
        self.disk.sync_directory("/data")
        self.file = SyncedFile(file, "the file")
        self.file.write(0, b"old")
        self.disk.fault = self.fail

    def fail(self, operation: DiskOperation, path: str) -> None:
        if self.failures and self.failures[0][0] is operation:
            raise OSError(self.failures.pop(0)[1], "as told")

    def durable(self) -> bytes:
        return self.disk.crash_clone(Random(0)).content(PATH)


def test_a_change_is_durable_at_once() -> None:
    """SD-05."""
    world = World()
    world.file.write(1, b"x")
    assert world.durable() == b"oxd"


@pytest.mark.parametrize(
    "failures",
    [
        [(DiskOperation.WRITE, errno.EIO)],
        [(DiskOperation.SYNC, errno.EIO)],
        [(DiskOperation.SYNC, errno.ENOSPC)],
    ],
)
def test_after_a_failed_change_there_is_no_other(
    failures: Sequence[tuple[DiskOperation, int]],
) -> None:
    """SN-28: the disk may seem well again, yet nobody knows what it holds."""
    world = World()
    world.failures += failures
    with pytest.raises(SegmentFailedError, match="the file at byte 1"):
        world.file.write(1, b"x")
    with pytest.raises(SegmentFailedError, match="no update after a failed one"):
        world.file.write(1, b"y")


def test_a_change_that_found_no_space_may_be_tried_again() -> None:
    world = World()
    world.failures += [(DiskOperation.WRITE, errno.ENOSPC), (DiskOperation.WRITE, errno.EDQUOT)]
    for _ in range(2):
        with pytest.raises(SegmentFailedError):
            world.file.write(1, b"x")
    world.file.write(1, b"x")
    assert world.durable() == b"oxd"
