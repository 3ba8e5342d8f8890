"""Opening a segment whose index is behind, ahead, damaged or missing (SD-14 to SD-17)."""

from __future__ import annotations

import pytest

from tests.shares import one_in
from tests.storage.segment_files import (
    IDX,
    SEG,
    cut,
    disk_with,
    flip,
    lose_index_from,
    ranges,
    reopen,
    starts,
)
from tests.storage.support import (
    DIRECTORY,
    OTHER_KEY,
    batch,
    random,
    read_independently,
    record_data,
    t,
)
from waltz.errors import CorruptionError, SegmentFailedError
from waltz.limits import INDEX_SYNC_RECORDS, OPEN_CHECK_RECORDS
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk


def test_records_behind_the_index_are_kept_and_entered() -> None:
    """Their sync was answered for, the entries were lost in a power cut."""
    disk = disk_with(40)
    good = disk.content(IDX)
    lose_index_from(disk, 11)
    opened = reopen(disk, proof=True)
    assert (opened.segment.next_transaction_id, opened.damage, opened.torn) == (40, (), None)
    assert disk.content(IDX) == good


def test_holes_in_the_index_are_filled() -> None:
    """Any of the entries since the last sync may be missing after a power cut."""
    draw = random("holes")
    for _ in range(50):
        disk = disk_with(300)
        good = disk.content(IDX)
        for _ in range(draw.randrange(1, 5)):
            entry = draw.randrange(300)
            disk.damage(IDX, 128 + 8 * entry, bytes(8 * min(64, 300 - entry)))
        opened = reopen(disk, proof=True)
        assert (opened.segment.next_transaction_id, opened.damage, opened.torn) == (300, (), None)
        assert disk.content(IDX) == good


def test_impossible_entries_are_not_believed() -> None:
    draw = random("impossible")
    for value in (1, 127, 2**62, -1, -(2**63), 130):
        disk = disk_with(300)
        good = disk.content(IDX)
        disk.damage(IDX, 128 + 8 * draw.randrange(1, 300), value.to_bytes(8, "big", signed=True))
        opened = reopen(disk, proof=True)
        assert (opened.segment.next_transaction_id, opened.damage) == (300, ())
        assert opened.indexes_healed == 1
        assert disk.content(IDX) == good


def test_damage_below_an_indexed_thousand_is_no_torn_tail() -> None:
    """SD-17: the index reaches into a thousand only after all below it was synced, whoever
    wrote it."""
    ends = starts(2001)
    disk = disk_with(2001)
    flip(disk, SEG, ends[1999] + 3)
    before = disk.content(SEG)
    opened = reopen(disk)
    assert ranges(opened.damage) == [(1999, 2000)]
    assert opened.segment.next_transaction_id == 2001
    assert disk.content(SEG) == before
    flip(disk, SEG, ends[1999] + 3)
    flip(disk, SEG, ends[2000] + 3)
    opened = reopen(disk)
    assert (opened.segment.next_transaction_id, opened.damage) == (2000, ())
    assert opened.torn


@pytest.mark.parametrize("multiple", [1000, INDEX_SYNC_RECORDS])
def test_zeroed_index_entry_at_a_multiple_makes_the_scan_start_earlier(multiple: int) -> None:
    """Hazard D1: two valid records more, index entry at the multiple zeroed; the original refuses
    to start."""
    disk = disk_with(multiple + 2, size=10)
    good = disk.content(IDX)
    disk.damage(IDX, 128 + 8 * multiple, bytes(8))
    opened = reopen(disk)
    assert (opened.torn, opened.damage) == (None, ())
    assert opened.segment.next_transaction_id == multiple + 2
    assert disk.content(IDX) == good


def test_index_damaged_after_the_checkpoint_is_rebuilt() -> None:
    """SD-14: 100 random damages."""
    draw = random("index")
    for _ in range(100):
        disk = disk_with(1100)
        good = disk.content(IDX)
        for _ in range(draw.randrange(1, 4)):
            entry = draw.randrange(1000, 1100)
            disk.damage(IDX, 128 + 8 * entry, draw.randbytes(8))
        if draw.random() < 0.5:
            cut(disk, IDX, draw.randrange(128 + 8 * 1000, len(good)))
        opened = reopen(disk, mark=draw.choice((-1, 500, 999)), proof=draw.random() < 0.5)
        assert (opened.segment.next_transaction_id, opened.torn) == (1100, None)
        assert opened.damage == ()
        assert disk.content(IDX) == good


@pytest.mark.parametrize("size", [None, 0, 50, 128, 128 + 8 * 300 + 3])
def test_missing_or_short_index_is_rebuilt(size: int | None) -> None:
    """Hazard D3."""
    disk = disk_with(1100)
    good = disk.content(IDX)
    if size is None:
        disk.remove(IDX)
    else:
        cut(disk, IDX, size)
    for proof in (False, True):
        opened = reopen(disk, proof=proof)
        assert (opened.segment.next_transaction_id, opened.torn) == (1100, None)
        assert disk.content(IDX)[128:] == good[128:]
        cut(disk, IDX, 128)
        opened = reopen(disk, following=1100)
        assert (opened.segment.next_transaction_id, opened.damage) == (1100, ())
        assert disk.content(IDX)[128:] == good[128:]
        cut(disk, IDX, 128 + 8 * 7)


def test_index_that_seems_to_be_another_segments_is_made_anew_and_its_size_believed() -> None:
    """One bit of a header may have changed, and with it a record's: then what was durable is
    damaged, never a torn tail. Other replicas know what there was."""
    for place, data in ((12, OTHER_KEY.bytes), (28, b"\0\0\0\7"), (39, b"\1"), (3, b"\1")):
        disk = disk_with(10)
        disk.damage(IDX, place, data)
        disk.damage(SEG, disk.content(SEG).index(record_data(7)), b"\xff")
        opened = reopen(disk, proof=True)
        assert (opened.segment.next_transaction_id, opened.damage) == (10, ((7, 8),))
        disk = disk_with(10)
        disk.damage(IDX, place, data)
        opened = reopen(disk, proof=True)
        assert (opened.segment.next_transaction_id, opened.damage) == (10, ())
        assert opened.indexes_healed == 10
        assert len(read_independently(disk.content(SEG), disk.content(IDX))) == 10


def test_index_longer_than_the_data_is_cut() -> None:
    """The original writes entries first."""
    disk = disk_with(10)
    cut(disk, SEG, starts(10)[7])
    opened = reopen(disk)
    assert (opened.segment.next_transaction_id, opened.torn) == (7, None)
    assert len(disk.content(IDX)) == 128 + 8 * 7


def test_index_that_a_failed_sync_has_dropped_is_written_again() -> None:
    """What is seen of it is what is right, but only seen: no later sync would write it."""
    disk = disk_with(0)
    segment = reopen(disk).segment
    segment.write(batch(0, 40))
    segment.sync()
    disk.fault = lambda operation, path: fail_index_sync(operation, path)
    with pytest.raises(SegmentFailedError):
        segment.write_index()
    disk.fault = None
    segment = reopen(disk, ceiling=40, proof=True).segment
    for seed in range(5):
        clone = disk.crash_clone(random(seed))
        assert clone.content(IDX) == disk.content(IDX)
        assert len(read_independently(clone.content(SEG), clone.content(IDX))) == 40


def fail_index_sync(operation: DiskOperation, path: str) -> None:
    if operation is DiskOperation.SYNC and path.endswith(".idx"):
        raise OSError("the sync of the index fails")


@pytest.mark.parametrize("cuts", one_in(2, [1, 4]))
def test_power_cut_while_the_index_is_rebuilt_leaves_no_holes(cuts: int) -> None:
    """Half of the entries may be on disk, and the next opening looks at the last ones only."""
    count = 2 * INDEX_SYNC_RECORDS + 500
    disk = disk_with(count, size=1)
    disk.remove(IDX)
    disk.sync_directory(f"{DIRECTORY}/0")
    draw = random("rebuild")
    clones: list[SimulatedDisk] = []
    disk.fault = lambda operation, _: clones.extend(
        disk.crash_clone(draw) for _ in range(cuts) if operation is not DiskOperation.READ
    )
    reopen(disk)
    disk.fault = None
    assert len(clones) > 5 * cuts
    for clone in clones:
        opened = reopen(clone, proof=True)
        assert (opened.segment.next_transaction_id, opened.torn) == (count, None)
        assert clone.content(IDX)[128:] == disk.content(IDX)[128:]


def test_opening_reads_the_newest_records_only_where_the_index_is_whole() -> None:
    """However many there are since the last sync of the index."""
    count = INDEX_SYNC_RECORDS - 1
    disk = disk_with(count)
    ends = starts(count)
    flip(disk, SEG, ends[count - OPEN_CHECK_RECORDS - 1] + 37)
    opened = reopen(disk, proof=True)
    assert opened.damage == ()
    with pytest.raises(CorruptionError):
        opened.segment.read(t(count - OPEN_CHECK_RECORDS - 1), count_max=1, bytes_max=1)
    flip(disk, SEG, ends[count - OPEN_CHECK_RECORDS + 1] + 37)
    opened = reopen(disk, proof=True)
    assert len(opened.damage) == 1
    disk.damage(IDX, 128 + 8 * 5, bytes(8))
    assert len(reopen(disk, proof=True).damage) == 2
