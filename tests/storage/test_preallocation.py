"""Space ahead of the end of a growing file."""

from __future__ import annotations

import errno

import pytest

from tests.storage.support import DIRECTORY, fresh_disk
from waltz.host import File
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.log.preallocation import (
    PREALLOCATED_BYTES_MAX,
    PREALLOCATED_BYTES_MIN,
    Preallocation,
    data_bytes_ahead,
)

PATH = f"{DIRECTORY}/file"
ENOUGH = 10**9


def make_file(capacity: int = ENOUGH) -> tuple[SimulatedDisk, File]:
    disk = fresh_disk()
    disk.capacity_bytes = capacity
    return disk, disk.open(PATH, create=True)


def test_what_is_ahead_grows_with_the_file_between_its_bounds() -> None:
    sizes = (0, PREALLOCATED_BYTES_MIN, 4 * PREALLOCATED_BYTES_MIN + 400, 10**8, 10**9)
    assert [data_bytes_ahead(size) for size in sizes] == [
        PREALLOCATED_BYTES_MIN,
        PREALLOCATED_BYTES_MIN,
        PREALLOCATED_BYTES_MIN + 100,
        PREALLOCATED_BYTES_MAX,
        PREALLOCATED_BYTES_MAX,
    ]


def test_space_is_reserved_only_when_it_has_run_out() -> None:
    disk, file = make_file()
    reserved = Preallocation(file)
    for end in range(10, 1110, 10):
        reserved.cover(end, ahead=500, limit=ENOUGH)
    assert disk.counts[DiskOperation.PREALLOCATE] == 3
    assert ENOUGH - disk.free_bytes == 1030 + 500
    assert file.size() == 0


def test_nothing_is_reserved_beyond_the_limit_but_what_is_needed() -> None:
    disk, file = make_file()
    reserved = Preallocation(file)
    reserved.cover(100, ahead=500, limit=300)
    assert ENOUGH - disk.free_bytes == 300
    reserved.cover(310, ahead=500, limit=300)
    assert ENOUGH - disk.free_bytes == 310


def test_without_room_ahead_only_the_need_is_reserved() -> None:
    disk, file = make_file(1000)
    reserved = Preallocation(file)
    reserved.cover(400, ahead=900, limit=ENOUGH)
    assert disk.free_bytes == 600
    with pytest.raises(OSError, match="no space") as caught:
        reserved.cover(1001, ahead=900, limit=ENOUGH)
    assert caught.value.errno == errno.ENOSPC
    assert disk.free_bytes == 1000, "what was reserved in vain is given back"
    reserved.cover(1000, ahead=900, limit=ENOUGH)


def test_other_failures_are_told_at_once() -> None:
    disk, file = make_file()
    disk.fault = fail_nth(DiskOperation.PREALLOCATE, 1, errno.EIO)
    with pytest.raises(OSError, match="preallocate"):
        Preallocation(file).cover(10, ahead=10, limit=ENOUGH)
    assert disk.counts[DiskOperation.PREALLOCATE] == 1


def test_the_rest_is_given_back_and_only_if_there_is_one() -> None:
    disk, file = make_file()
    reserved = Preallocation(file)
    reserved.give_back(0)
    assert disk.counts[DiskOperation.TRUNCATE] == 0
    reserved.cover(10, ahead=100, limit=ENOUGH)
    file.write_at(0, bytes(10))
    reserved.give_back(10)
    assert (disk.free_bytes, file.size()) == (ENOUGH - 10, 10)
    reserved.give_back(10)
    assert disk.counts[DiskOperation.TRUNCATE] == 1
    reserved.cover(20, ahead=0, limit=ENOUGH)
    reserved.truncate(5)
    assert (disk.free_bytes, file.size()) == (ENOUGH - 5, 5)
