"""The reserve file, on a simulated disk with a capacity and on a real one (SN-28)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.support import DIRECTORY
from waltz.limits import SPACE_RESERVE_BYTES
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.directory.reserve import RESERVE_NAME, Reserve
from waltz.system.real_disk import RealDisk

SIZE = SPACE_RESERVE_BYTES
PATH = f"{DIRECTORY}/{RESERVE_NAME}"


def disk_of(capacity: int) -> SimulatedDisk:
    return SimulatedDisk([DIRECTORY], capacity_bytes=capacity)


def test_space_is_taken_and_given_back() -> None:
    disk = disk_of(3 * SIZE)
    reserve = Reserve(disk, DIRECTORY)
    for _ in range(2):
        reserve.take()
        assert disk.space(DIRECTORY).free_bytes == 2 * SIZE
        assert disk.content(PATH) == b""
        held = [reserve.is_held]
        reserve.give_back()
        assert [*held, reserve.is_held] == [True, False]
        assert disk.space(DIRECTORY).free_bytes == 3 * SIZE


def test_it_is_given_back_durably() -> None:
    disk = disk_of(3 * SIZE)
    reserve = Reserve(disk, DIRECTORY)
    reserve.take()
    disk.counts.clear()
    reserve.give_back()
    assert disk.counts[DiskOperation.TRUNCATE] == disk.counts[DiskOperation.SYNC] == 1


def test_taking_it_again_after_a_restart_takes_nothing_more() -> None:
    disk = disk_of(3 * SIZE)
    Reserve(disk, DIRECTORY).take()
    after = Reserve(disk, DIRECTORY)
    assert not after.is_held
    after.take()
    assert disk.space(DIRECTORY).free_bytes == 2 * SIZE


def test_what_an_earlier_process_took_can_be_given_back_unseen() -> None:
    disk = disk_of(SIZE)
    Reserve(disk, DIRECTORY).take()
    Reserve(disk, DIRECTORY).give_back()
    assert disk.space(DIRECTORY).free_bytes == SIZE
    Reserve(disk_of(SIZE), DIRECTORY).give_back()


def test_without_room_nothing_is_taken() -> None:
    disk = disk_of(SIZE - 1)
    reserve = Reserve(disk, DIRECTORY)
    with pytest.raises(OSError, match="no space"):
        reserve.take()
    assert not reserve.is_held
    assert disk.space(DIRECTORY).free_bytes == SIZE - 1


def test_a_disk_that_fails_leaves_it_not_held() -> None:
    disk = disk_of(3 * SIZE)
    reserve = Reserve(disk, DIRECTORY)
    disk.fault = fail_nth(DiskOperation.OPEN, 1)
    with pytest.raises(OSError, match="open number 1 fails"):
        reserve.take()
    assert not reserve.is_held
    reserve.take()
    disk.fault = fail_nth(DiskOperation.SYNC, 1)
    with pytest.raises(OSError, match="sync number 1 fails"):
        reserve.give_back()
    assert not reserve.is_held


def test_on_a_real_disk_it_has_blocks_and_no_content(tmp_path: Path) -> None:
    reserve = Reserve(RealDisk(), str(tmp_path))
    reserve.take()
    found = (tmp_path / RESERVE_NAME).stat()
    assert (found.st_size, found.st_blocks * 512) == (0, SIZE)
    reserve.give_back()
    assert (tmp_path / RESERVE_NAME).stat().st_blocks == 0
