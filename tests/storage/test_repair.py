"""Records put back where damaged ones are: where, whether they fit, and power cuts in between."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.storage.logs import (
    filled_disk,
    flip,
    open_chain,
    path,
    place,
    ranges,
    readable,
    reopened,
    scrub_all,
    spoil,
)
from tests.storage.support import DIRECTORY, OTHER_KEY, batch, fresh_disk, home, random, t
from waltz.errors import CorruptionError, SegmentFailedError, StorageError, UnavailableError
from waltz.record import RecordBatch
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.log.damage import DamagedRange
from waltz.storage.log.repair import repair_segment
from waltz.storage.log.segment import NoFile, Segment
from waltz.storage.log.segment_recovery import Trust, open_segment


def records(first: int, following: int) -> RecordBatch:
    return batch(first, following - first, size=60)


def files(disk: SimulatedDisk) -> dict[str, bytes]:
    directory = f"{DIRECTORY}/0"
    return {
        name: disk.content(f"{directory}/{name}")
        for name in disk.list_directory(directory)
        if name.endswith((".seg", ".idx"))
    }


@pytest.mark.parametrize(
    ("first", "following"), [(0, 1), (3, 4), (3, 6), (7, 9), (27, 28), (28, 30)]
)
def test_repaired_files_are_what_they_were(first: int, following: int) -> None:
    """At once or record by record; in the middle and at the ends of segments."""
    for step in (1, 2, 9):
        disk = filled_disk(30)
        good = files(disk)
        spoil(disk, *range(first, following))
        chain = reopened(disk)
        scrub_all(chain)
        assert ranges(chain) == [(first, following)]
        for start in range(first, following, step):
            chain.records.repair(records(start, min(following, start + step)))
        assert chain.damage == ()
        assert readable(chain) == list(range(30))
        assert files(disk) == good
        chain.close()
        assert reopened(disk).damage == ()


def test_whole_segments_are_repaired_piece_by_piece() -> None:
    """Missing, another cluster's, or cut; the strange file is set aside, not thrown away."""
    for first in (0, 9, 27):
        following = min(30, first + 9)
        for change in ("missing", "foreign", "cut", "both"):
            disk = filled_disk(30)
            good = files(disk)
            if change == "foreign":
                disk.damage(path(first), 12, OTHER_KEY.bytes)
            elif change == "cut":
                disk.open(path(first)).truncate(128)
            else:
                disk.remove(path(first))
            strange = disk.content(path(first)) if disk.exists(path(first)) else b""
            if change == "both" and first < 27:
                disk.remove(path(first, ".idx"))
            chain = reopened(disk)
            assert ranges(chain) == [(first, following)]
            for start in range(first, following, 4):
                chain.records.repair(records(start, min(following, start + 4)))
                assert readable(chain) == sorted(
                    set(range(30)) - set(range(min(following, start + 4), following))
                )
            assert chain.damage == ()
            for name, content in files(disk).items():
                assert content[128:] == good[name][128:], (change, name)
            if change == "foreign":
                assert disk.content(path(first) + ".damaged") == strange
            chain.write(records(30, 40))
            chain.close()
            assert readable(reopened(disk)) == list(range(40))


def test_repair_starts_where_a_range_does_and_does_not_exceed_it() -> None:
    disk = filled_disk(30)
    spoil(disk, 4, 5, 6)
    chain = reopened(disk)
    scrub_all(chain)
    before = files(disk)
    for first, following in ((3, 5), (5, 6), (5, 7), (4, 8), (3, 8), (30, 31)):
        with pytest.raises(StorageError, match="damaged are records 4 to 6"):
            chain.records.repair(records(first, following))
    with pytest.raises(StorageError, match="no damage from 11 to 11"):
        chain.records.repair(batch(11, 1, size=61))
    assert files(disk) == before


def test_repair_of_what_is_there_already_succeeds_and_writes_nothing() -> None:
    """Its answer may have been lost."""
    disk = filled_disk(30)
    spoil(disk, 4)
    chain = reopened(disk)
    scrub_all(chain)
    chain.records.repair(records(4, 5))
    disk.counts.clear()
    chain.records.repair(records(4, 5))
    chain.records.repair(records(20, 20))
    assert disk.counts[DiskOperation.WRITE] == 0


@pytest.mark.parametrize("size", [0, 59, 61, 160, 10_000])
def test_records_that_do_not_fit_are_refused_and_nothing_is_written(size: int) -> None:
    """They are not what was here; the range's end is where the next good record begins, or where
    the log ends."""
    for numbers in ((4,), (4, 5), (8,)):
        disk = filled_disk(30)
        spoil(disk, *numbers)
        chain = reopened(disk)
        scrub_all(chain)
        before = files(disk)
        if numbers == (8,) or (len(numbers) == 2 and size in (0, 59, 61)):
            continue
        with pytest.raises(StorageError, match="do not fit where"):
            chain.records.repair(batch(4, 1, size=size))
        assert files(disk) == before


def test_the_last_part_must_fit_exactly() -> None:
    disk = filled_disk(30)
    spoil(disk, 4, 5)
    chain = reopened(disk)
    scrub_all(chain)
    chain.records.repair(batch(4, 1, size=50))
    for size in (60, 69, 71):
        with pytest.raises(StorageError, match="do not fit where record 5 had 110 bytes"):
            chain.records.repair(batch(5, 1, size=size))
    chain.records.repair(batch(5, 1, size=70))
    assert chain.damage == ()


def test_behind_a_lost_end_what_is_left_of_the_file_is_cut() -> None:
    """Whatever the damaged records' lengths were."""
    for size in (20, 60, 200):
        disk = filled_disk(29)
        disk.open(path(27)).write_at(328, b"torn tail" * 40)
        spoil(disk, 28)
        chain = reopened(disk)
        assert ranges(chain) == [(28, 29)]
        chain.records.repair(batch(28, 1, size=size))
        assert len(disk.content(path(27))) == 228 + 40 + size
        chain.write(records(29, 31))
        chain.sync()
        assert len(chain.segments.firsts) == 4
        assert chain.records.read(t(29), count_max=9, bytes_max=10**6) == records(29, 31)


def test_repair_next_to_records_that_are_bad_too_finds_that_out() -> None:
    disk = filled_disk(30)
    spoil(disk, 4)
    chain = reopened(disk)
    scrub_all(chain)
    spoil(disk, 3, 5)
    with pytest.raises(CorruptionError, match="record 3, next to the ones to repair"):
        chain.records.repair(records(4, 5))
    assert ranges(chain) == [(3, 6)]
    chain.records.repair(records(3, 6))
    assert readable(chain) == list(range(30))


def test_power_cut_in_a_repair_leaves_it_undone_done_or_damaged() -> None:
    """Never anything else than the right records, and never fewer good ones than before."""
    draw = random("repair")
    for numbers in ((4, 5, 6), (28, 29), tuple(range(9, 18))):
        disk = filled_disk(30)
        if len(numbers) == 9:
            disk.damage(path(9), 12, OTHER_KEY.bytes)
        else:
            spoil(disk, *numbers)
        chain = reopened(disk)
        scrub_all(chain)
        clones: list[SimulatedDisk] = []
        disk.fault = lambda *_, clones=clones, disk=disk: clones.extend(
            disk.crash_clone(draw) for _ in range(6)
        )
        chain.records.repair(records(numbers[0], numbers[0] + 2))
        chain.records.repair(records(numbers[0] + 2, numbers[-1] + 1))
        disk.fault = None
        states = set()
        for clone in clones:
            found, torn = open_chain(clone)
            assert torn is None
            assert found.next_transaction_id == 30
            scrub_all(found)
            assert set(readable(found)) >= set(range(30)) - set(numbers)
            states.add(found.damage)
            for first, following in found.damage:
                found.records.repair(records(first, following))
            assert readable(found) == list(range(30))
        assert len(states) >= 2


@pytest.mark.parametrize("operation", [DiskOperation.WRITE, DiskOperation.SYNC])
@pytest.mark.parametrize("number", [1, 2])
def test_failed_repair_closes_the_segment_and_can_be_done_again(
    operation: DiskOperation, number: int
) -> None:
    """Number 2 is that of the index."""
    disk = filled_disk(30)
    spoil(disk, 4)
    chain = reopened(disk)
    scrub_all(chain)
    disk.fault = fail_nth(operation, number)
    with pytest.raises(SegmentFailedError, match="repair of 1 records"):
        chain.records.repair(records(4, 5))
    assert ranges(chain) == [(4, 5)]
    with pytest.raises(SegmentFailedError, match="closed by an earlier failure"):
        chain.records.repair(records(4, 5))
    again = reopened(disk)
    scrub_all(again)
    for first, following in again.damage:
        again.records.repair(records(first, following))
    assert readable(again) == list(range(30))


def test_what_is_not_read_back_was_not_repaired() -> None:
    """A disk that takes the write and keeps the old bytes."""
    disk = filled_disk(30)
    spoil(disk, 4)
    where, offset = place(4)
    chain = reopened(disk)
    scrub_all(chain)
    wrong = disk.content(where)[offset : offset + 100]

    def keep(operation: DiskOperation, found: str) -> None:
        if (
            operation is DiskOperation.READ
            and found == where
            and disk.counts[DiskOperation.SYNC] > syncs
        ):
            disk.damage(where, offset, wrong)

    syncs = disk.counts[DiskOperation.SYNC]
    disk.fault = keep
    with pytest.raises(SegmentFailedError, match="differ from those written"):
        chain.records.repair(records(4, 5))
    assert ranges(chain) == [(4, 5)]


def test_repair_without_space_is_a_clean_refusal() -> None:
    disk = filled_disk(30)
    disk.remove(path(27))
    chain = reopened(disk)
    disk.capacity_bytes = 0
    with pytest.raises((UnavailableError, SegmentFailedError), match="no space"):
        chain.records.repair(records(27, 30))
    assert ranges(chain) == [(27, 30)]
    disk.capacity_bytes = None
    again = reopened(disk)
    again.records.repair(records(27, 30))
    assert readable(again) == list(range(30))


def open_lost(disk: SimulatedDisk) -> tuple[Segment, DamagedRange]:
    opened = open_segment(
        home(disk),
        t(27),
        Trust(local_low_water_mark=t(-1), index_is_proof=True),
        following=None,
        wall_milliseconds=1,
    )
    (damaged,) = opened.damage
    return opened.segment, damaged


def test_lost_data_file_is_made_anew_by_the_first_repair() -> None:
    disk = filled_disk(30)
    disk.remove(path(27))
    segment, damaged = open_lost(disk)
    repair_segment(home(disk), segment, damaged, records(27, 29), wall_milliseconds=5)
    assert segment.has_lost_end
    assert segment.read(t(27), count_max=2, bytes_max=1000) == records(27, 29)
    for seed in range(5):
        clone = disk.crash_clone(random(seed))
        assert len(clone.content(path(27))) == 328


def test_nothing_can_be_written_to_a_file_that_is_not_there() -> None:
    file = NoFile("somewhere")
    assert (file.size(), file.read_at(0, 10)) == (0, b"")
    actions: list[Callable[[], None]] = [
        lambda: file.write_at(0, b"x"), lambda: file.truncate(0), lambda: file.preallocate(1),
        file.sync,
    ]  # fmt: skip
    for action in actions:
        with pytest.raises(OSError, match="the data file is lost") as caught:
            action()
        assert caught.value.errno == errno.ENOENT
    file.close()


def test_wrong_entries_of_damaged_records_are_put_right_by_repair() -> None:
    """Then nothing vouches for the end of the record before them either."""
    disk = filled_disk(30)
    good = files(disk)
    spoil(disk, 4, 5)
    for number in (4, 5):
        flip(disk, path(0, ".idx"), 128 + 8 * number + 7)
    chain = reopened(disk)
    scrub_all(chain)
    assert ranges(chain) == [(3, 6)]
    chain.records.repair(records(3, 6))
    assert files(disk) == good


def test_empty_repair_is_none() -> None:
    disk = fresh_disk()
    chain, _ = open_chain(disk)
    chain.records.repair(records(0, 0))
