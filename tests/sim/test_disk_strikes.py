"""What faults do to a disk: the right operations fail, one bit flips, room goes and comes."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.sim.struck_machines import FILE, World, play
from tests.storage.support import batch
from waltz.sim.faults.disk_plans import FAILURE_SECONDS_MAX
from waltz.sim.faults.disk_strikes import (
    FailingOperations,
    blank_disk,
    flip_bits,
    give_room,
    leave_room,
    without_newest,
)
from waltz.sim.faults.kinds import BitFlips, DiskFailure, FullDisk, LostDisk, OldDisk, SlowDisk
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


def indexed(count: int, entries: int) -> tuple[bytes, bytes]:
    """A data file of `count` records, and an index with the first `entries` of them."""
    records = batch(0, count)
    data, index = bytes(128) + records.block, bytes(128)
    for offset in records.offsets[:entries]:
        index += (128 + int(offset)).to_bytes(8)
    return data, index


def unsynced_index(share: float, *names: str) -> list[SimulatedDisk]:
    """What power cuts may leave where bits of the first data file flip, of 6 records whose index
    entries, but for 4 of them, were not synced."""
    data, index = indexed(6, 6)
    contents = dict.fromkeys([f"/s/{name}.seg" for name in names], data)
    contents |= dict.fromkeys([f"/s/{name}.idx" for name in names], index[: 128 + 32])
    disk = SimulatedDisk(contents={"/s": None, **contents})
    for name in names:
        disk.open(f"/s/{name}.idx").write_at(128 + 32, index[128 + 32 :])
    assert flip_bits(disk, flips((0.4, share, 0))) == ["/s/0.seg"]
    return [disk.crash_clone(Random(seed)) for seed in range(20)]


def test_the_index_of_what_rots_has_been_written_out() -> None:
    clones = unsynced_index(0.9, "0", "9")
    assert {len(clone.content("/s/0.idx")) for clone in clones} == {128 + 48}
    assert len({len(clone.content("/s/9.idx")) for clone in clones}) > 1


def test_index_entries_behind_what_rots_may_still_get_lost() -> None:
    clones = unsynced_index(0.3, "0", "9")
    assert 128 + 32 in {len(clone.content("/s/0.idx")) for clone in clones}


@pytest.mark.parametrize(("entries", "rotten"), [(0, 0), (1, 1), (4, 4), (6, 6)])
def test_records_without_an_index_entry_do_not_rot(entries: int, rotten: int) -> None:
    """Seed 520235: a power cut took the entry, 25 ms later the record rotted."""
    data, index = indexed(6, entries)
    for share in (0.0, 0.3, 0.6, 0.9, 1.0):
        disk = SimulatedDisk(contents={"/s": None, "/s/0.idx": index, "/s/0.seg": data})
        assert flip_bits(disk, flips((1.0, share, 0))) == ["/s/0.seg"]
        changed = disk.content("/s/0.seg")
        (place,) = (number for number in range(len(data)) if data[number] != changed[number])
        end = 128 + int(batch(0, 6).offsets[rotten])
        assert place == min(int(share * end), end - 1)


def test_rot_in_an_index_does_not_write_it_out() -> None:
    data, index = indexed(6, 6)
    disk = SimulatedDisk(contents={"/s": None, "/s/0.idx": index[:128], "/s/0.seg": data})
    disk.open("/s/0.idx").write_at(128, index[128:])
    flip_bits(disk, flips((0.0, 0.0, 0)))
    clones = {disk.crash_clone(Random(seed)).content("/s/0.idx") for seed in range(20)}
    assert {len(content) for content in clones} == {128, len(index)}


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


# Machines


def test_disks_are_slow_for_a_while() -> None:
    async def scene(world: World) -> None:
        before = world.loop.time()
        fault = SlowDisk(progress=0.0, name="node", seconds=30.0, slowest_seconds=8.0)
        await world.strike(fault)
        longest.append(world.silence(before, world.ticks))
        await asyncio.sleep(10.0)
        assert world.silence(world.loop.time() - 1.0, world.ticks) < 1.0

    longest: list[float] = []
    play(scene)
    assert max(longest) > 4.0


def test_disks_fail_some_operations_and_no_more() -> None:
    async def scene(world: World) -> None:
        fault = DiskFailure(
            progress=0.0, name="node", operations=("sync",), passed=2, count=3, done=0.0
        )
        ticks = len(world.ticks)
        await world.strike(fault)
        assert len(world.ticks) == ticks + 2
        await asyncio.sleep(1.0)
        assert len(world.errors) == 3
        assert len(world.ticks) > ticks + 2
        assert world.strikes.record.counts == {"DiskFailure": 3}
        assert not world.strikes.disks.harmed

    play(scene)


@pytest.mark.parametrize("restarts", [True, False])
def test_flipped_bits_harm_a_disk(restarts: bool) -> None:
    async def scene(world: World) -> None:
        fault = BitFlips(
            progress=0.0, name="node", places=((0.0, 0.0, 7), (0.9, 0.3, 7)), restarts=restarts
        )
        await world.strike(fault)
        await asyncio.sleep(1.0)
        assert 1 <= world.sites.disk("node").content(FILE).count(b"x"[0] ^ 0x80) <= 2
        assert world.starts.count("node") == 1 + restarts
        assert [*world.strikes.disks.harmed] == ["node"]

    play(scene)


def test_a_full_disk_has_room_again_in_time() -> None:
    async def scene(world: World) -> None:
        await world.strike(FullDisk(progress=0.0, name="node", room_bytes=3, seconds=5.0))
        assert all("no space" in error for error in world.errors)
        assert len(world.errors) > 30
        await asyncio.sleep(1.0)
        assert world.silence(world.loop.time() - 1.0, world.ticks) < 1.0

    play(scene, seeds=2)


def test_a_lost_disk_comes_back_blank_and_an_old_one_as_it_was() -> None:
    async def scene(world: World) -> None:
        before = world.size
        old = OldDisk(progress=0.0, name="node", seconds=3.0, pause_seconds=0.0)
        assert await world.strike(old) >= 3.0
        assert before <= world.size <= before + 2
        assert [*world.strikes.disks.harmed] == ["node"]
        await asyncio.sleep(0.1)
        await world.strike(LostDisk(progress=0.0, name="node", pause_seconds=0.0))
        assert world.sites.disk("node").list_directory("/data") == []
        await asyncio.sleep(1.0)
        assert 0 < world.size < 12
        assert world.starts.count("node") == 3

    play(scene)
