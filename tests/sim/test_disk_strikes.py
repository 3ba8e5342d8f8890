"""What faults do to a disk: the right operations fail, one bit flips, room goes and comes."""

from __future__ import annotations

from random import Random

import pytest

from waltz.sim.faults.disk_plans import FAILURE_SECONDS_MAX
from waltz.sim.faults.disk_strikes import (
    FailingOperations,
    blank_disk,
    flip_bits,
    give_room,
    leave_room,
    without_newest,
)
from waltz.sim.faults.kinds import BitFlips, DiskFailure
from waltz.sim.loop import SimulatedLoop
from waltz.sim.simulated_disk import DiskOperation, PartlyDoneError, SimulatedDisk

FAILURE = DiskFailure(
    progress=0.0, name="node", operations=("write", "sync"), passed=2, count=2, done=0.25
)


def test_the_operations_named_fail_after_some_have_passed() -> None:
    failing = FailingOperations(FAILURE)
    failed: list[tuple[int, float]] = []
    for number, operation in enumerate(
        (DiskOperation.READ, *[DiskOperation.WRITE, DiskOperation.SYNC] * 4)
    ):
        try:
            failing(operation, "/file")
        except PartlyDoneError as error:
            failed.append((number, error.done))
    assert failed == [(3, 0.25), (4, 0.25)]
    assert failing.failed_count == 2


def test_a_failing_disk_waits_for_operations_but_not_for_ever() -> None:
    async def scene() -> float:
        failing = FailingOperations(FAILURE)
        await failing.over()
        assert loop.time() == FAILURE_SECONDS_MAX
        for _ in range(4):
            try:
                failing(DiskOperation.SYNC, "/file")
            except PartlyDoneError:
                continue
        await failing.over()
        return loop.time()

    loop = SimulatedLoop(1)
    assert loop.run_until_complete(scene()) == FAILURE_SECONDS_MAX
    loop.shut_down()


def flips(*places: tuple[float, float, int]) -> BitFlips:
    return BitFlips(progress=0.0, name="node", places=places, restarts=False)


@pytest.mark.parametrize(
    ("place", "path", "offset"),
    [
        ((0.0, 0.0, 3), "/s/0/0.idx", 0),
        ((0.6, 0.5, 3), "/s/0/0.seg", 5),
        ((0.999, 0.9999, 3), "/s/0/0.seg", 9),
        ((1.0, 1.0, 11), "/s/0/0.seg", 9),
    ],
)
def test_one_bit_of_one_data_file_flips(
    place: tuple[float, float, int], path: str, offset: int
) -> None:
    contents = {
        "/s": None,
        "/s/0": None,
        "/s/0/0.seg": bytes(10),
        "/s/0/0.idx": bytes(10),
        "/s/0/9.seg": b"",
        "/s/other": bytes(10),
    }
    disk = SimulatedDisk(contents=contents)
    assert flip_bits(disk, flips(place)) == [path]
    expected = bytearray(10)
    expected[offset] = 8
    assert disk.contents() == {"/": None, **contents, path: bytes(expected)}


def test_the_index_of_what_rots_has_been_written_out() -> None:
    disk = SimulatedDisk(["/s"])
    for name in ("0.idx", "0.seg", "9.idx", "9.seg"):
        disk.open(f"/s/{name}", create=True).write_at(0, b"x" * 10)
    disk.sync_directory("/s")
    flip_bits(disk, flips((0.25, 0.0, 0)))
    clones = [disk.crash_clone(Random(seed)) for seed in range(20)]
    assert {clone.content("/s/0.idx") for clone in clones} == {b"x" * 10}
    assert {clone.content("/s/9.idx") for clone in clones} == {b"x" * 10, b""}


def test_without_data_nothing_flips() -> None:
    assert flip_bits(SimulatedDisk(["/s"]), flips((0.0, 0.0, 0))) == []


def test_room_is_left_and_given_back() -> None:
    disk = SimulatedDisk(contents={"/s": None, "/s/a": bytes(1000)})
    leave_room(disk, 10)
    assert disk.free_bytes == 10
    assert disk.capacity_bytes == 1010
    give_room(disk)
    assert disk.capacity_bytes is None


def test_a_blank_disk_has_the_topmost_directories_alone() -> None:
    disk = SimulatedDisk(contents={"/s": None, "/s/0": None, "/s/0/a": b"x"})
    blank = blank_disk(disk)
    assert blank.contents() == {"/": None, "/s": None}


def test_the_newest_segments_are_lost_and_nothing_else() -> None:
    disk = SimulatedDisk(["/storage"])
    disk.make_directory("/storage/0")
    names = ["0000.seg", "0000.idx", "0007.seg", "0007.idx"]
    for name in names:
        disk.open(f"/storage/0/{name}", create=True).close()
    disk.open("/storage/waltz-storage.ctl", create=True).close()
    left = without_newest(disk)
    assert list(left.list_directory("/storage/0")) == ["0000.idx", "0000.seg"]
    assert left.exists("/storage/waltz-storage.ctl")
