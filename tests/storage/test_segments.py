"""The segments of a partition as one log: damage, roll-over, cuts, space (SD-17 to SD-22)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.storage.logs import (
    THRESHOLD,
    filled_disk,
    flip,
    make_chain,
    open_chain,
    path,
    ranges,
    readable,
    reopened,
    scrub_all,
    spoil,
)
from tests.storage.support import DIRECTORY, OTHER_KEY, batch, fresh_disk, random, t
from waltz.errors import (
    CorruptionError,
    SegmentFailedError,
    UnavailableError,
)
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.log.index_file import INDEX_PREALLOCATED_BYTES
from waltz.storage.log.preallocation import PREALLOCATED_BYTES_MIN
from waltz.storage.log.segment_recovery import Trust


def test_chain_is_one_log_over_all_segments() -> None:
    disk = fresh_disk()
    chain, _ = open_chain(disk, threshold=300)
    chain.write(batch(0, 20, size=60))
    chain.sync()
    assert (chain.next_transaction_id, len(chain.segments.firsts)) == (20, 10)
    assert chain.records.read(t(3), count_max=9, bytes_max=10**6) == batch(3, 9, size=60)
    chain.truncate(t(4))
    assert (chain.next_transaction_id, len(chain.segments.firsts)) == (5, 3)
    chain.close()
    chain = reopened(disk, mark=4)
    assert (chain.next_transaction_id, chain.damage) == (5, ())


# Damage


def test_damage_is_remembered_over_restarts_and_looked_at_again() -> None:
    """The opening alone would not come across it; and what was unreadable once may be good."""
    disk = filled_disk(30)
    spoil(disk, 4)
    good = reopened(disk)
    assert good.damage == ()
    with pytest.raises(CorruptionError):
        good.records.read(t(4), count_max=1, bytes_max=1)
    good.segments.close()
    for seed in range(5):
        assert ranges(reopened(disk.crash_clone(random(seed)))) == [(4, 5)]
    spoil(disk, 4)
    assert reopened(disk).damage == ()
    assert f"{DIRECTORY}/0/damaged.json" not in disk.list_directory(f"{DIRECTORY}/0")


def test_memory_of_damage_that_is_damaged_itself_makes_all_be_looked_at() -> None:
    disk = filled_disk(30)
    spoil(disk, 4, 12)
    chain = reopened(disk)
    scrub_all(chain)
    flip(disk, f"{DIRECTORY}/0/damaged.json", 14)
    assert ranges(reopened(disk)) == [(4, 5), (12, 13)]


def test_damage_is_known_although_it_cannot_be_written_down() -> None:
    disk = filled_disk(30)
    spoil(disk, 4)
    chain = reopened(disk)
    disk.fault = fail_nth(DiskOperation.OPEN, 1, errno.ENOSPC)
    with pytest.raises(CorruptionError):
        chain.records.read(t(4), count_max=1, bytes_max=1)
    assert ranges(chain) == [(4, 5)]
    chain.close()
    assert ranges(reopened(disk)) == [(4, 5)]


@pytest.mark.parametrize("first", [0, 9, 18, 27])
def test_a_segment_without_its_data_file_is_one_range(first: int) -> None:
    """Missing, cut below its header, another cluster's: all other segments are served."""
    following = min(first + 9, 30)
    changes: list[Callable[[SimulatedDisk], None]] = [
        lambda disk: disk.remove(path(first)),
        lambda disk: disk.open(path(first)).truncate(60),
        lambda disk: disk.damage(path(first), 12, OTHER_KEY.bytes),
        lambda disk: disk.damage(path(first), 0, bytes(128)),
    ]
    for change in changes:
        disk = filled_disk(30)
        change(disk)
        chain = reopened(disk)
        assert ranges(chain) == [(first, following)]
        assert chain.next_transaction_id == 30
        assert readable(chain) == sorted(set(range(30)) - set(range(first, following)))
        chain.close()
        assert ranges(reopened(disk)) == [(first, following)]


def test_a_segment_that_is_missing_altogether_is_one_range() -> None:
    """Hazard D5: neither file of it is there, and those around it tell of it."""
    for first, following in ((0, 9), (9, 18), (18, 27)):
        disk = filled_disk(30)
        disk.remove(path(first))
        disk.remove(path(first, ".idx"))
        chain = reopened(disk)
        assert ranges(chain) == [(first, following)]
        assert len(chain.segments.firsts) == 4
        assert readable(chain) == sorted(set(range(30)) - set(range(first, following)))
    disk = filled_disk(30)
    disk.remove(path(27))
    disk.remove(path(27, ".idx"))
    assert ranges(reopened(disk, mark=29)) == [(27, 30)]


def test_two_lost_segments_are_two_ranges() -> None:
    disk = filled_disk(30)
    disk.remove(path(9))
    disk.remove(path(18))
    chain = reopened(disk)
    assert ranges(chain) == [(9, 18), (18, 27)]
    assert readable(chain) == [*range(9), 27, 28, 29]


def test_index_without_records_tells_of_no_segment() -> None:
    """Hazard D2: what a crash in a roll-over leaves, and a truncation after it does not clean."""
    disk = filled_disk(30)
    for first in (5, 30, 77):
        disk.open(path(first, ".idx"), create=True).write_at(0, bytes(128))
    chain = reopened(disk)
    assert (chain.next_transaction_id, chain.damage) == (30, ())


def test_partition_without_any_segment_is_no_partition() -> None:
    for proof in (True, False):
        disk = filled_disk(5)
        disk.remove(path(0))
        disk.remove(path(0, ".idx"))
        with pytest.raises(CorruptionError, match="has no segments; expected records up to 4"):
            open_chain(disk, mark=4, proof=proof)
        assert reopened(disk).next_transaction_id == 0


def test_segment_of_another_cluster_or_release_refuses_all_service() -> None:
    """SD-25."""
    disk = filled_disk(30)
    for suffix in (".seg", ".idx"):
        disk.damage(path(9, suffix), 0, (99).to_bytes(4, "big"))
    with pytest.raises(CorruptionError, match="format version 99; this release knows 0"):
        open_chain(disk)


def test_appends_go_on_behind_a_lost_end_in_a_new_segment() -> None:
    disk = filled_disk(30)
    spoil(disk, 29)
    chain = reopened(disk)
    assert ranges(chain) == [(29, 30)]
    chain.write(batch(30, 12, size=60))
    chain.sync()
    assert len(chain.segments.firsts) == 6
    assert readable(chain) == sorted(set(range(42)) - {29})
    chain.close()
    chain = reopened(disk)
    assert ranges(chain) == [(29, 30)]
    assert readable(chain) == sorted(set(range(42)) - {29})
    chain.records.repair(batch(29, 1, size=60))
    assert readable(chain) == list(range(42))


def test_appends_go_on_behind_damage_that_was_found_while_the_segment_was_open() -> None:
    """Its end is known then."""
    disk = fresh_disk()
    chain, _ = open_chain(disk)
    chain.write(batch(0, 3, size=60))
    chain.sync()
    spoil(disk, 2)
    assert readable(chain) == [0, 1]
    chain.write(batch(3, 3, size=60))
    chain.sync()
    assert readable(chain) == [0, 1, 3, 4, 5]
    assert len(chain.segments.firsts) == 1
    chain.records.repair(batch(2, 1, size=60))
    assert readable(chain) == [0, 1, 2, 3, 4, 5]


def test_truncation_below_damage_removes_it() -> None:
    for last in range(-1, 30):
        disk = filled_disk(30)
        spoil(disk, 12, 28)
        disk.remove(path(18))
        chain = reopened(disk)
        scrub_all(chain)
        assert ranges(chain) == [(12, 13), (18, 27), (28, 29)]
        if last < 12:
            chain.truncate(t(last))
            assert chain.damage == ()
            assert readable(chain) == list(range(last + 1))
            chain.write(batch(last + 1, 15, size=60))
            chain.sync()
            chain.close()
            assert readable(reopened(disk)) == list(range(last + 16))
        else:
            with pytest.raises(CorruptionError, match=r"damage before it .* record 12, records 18"):
                chain.truncate(t(last))
            assert ranges(chain) == [(12, 13), (18, 27), (28, 29)]


def test_truncation_to_a_record_that_turns_out_to_be_damaged_is_refused() -> None:
    disk = filled_disk(30)
    spoil(disk, 12)
    chain = reopened(disk)
    with pytest.raises(CorruptionError, match="record 12 of partition 0 is damaged"):
        chain.truncate(t(12))
    assert chain.next_transaction_id == 30


def test_truncation_to_the_start_of_a_lost_segment_makes_it_anew() -> None:
    disk = filled_disk(20)
    disk.remove(path(0))
    chain = reopened(disk)
    chain.truncate(t(-1))
    assert (chain.damage, chain.next_transaction_id) == ((), 0)
    chain.write(batch(0, 3, size=60))
    chain.close()
    assert readable(reopened(disk)) == [0, 1, 2]


# Space


def test_space_ahead_is_given_back_at_roll_over_and_close() -> None:
    disk = fresh_disk()
    disk.capacity_bytes = 10**8
    chain, _ = open_chain(disk, threshold=10**7)
    chain.write(batch(0, 3, size=60))
    ahead = PREALLOCATED_BYTES_MIN + INDEX_PREALLOCATED_BYTES
    assert 10**8 - disk.free_bytes == 2 * 128 + 324 + ahead
    chain.close()
    assert 10**8 - disk.free_bytes == 2 * 128 + 324
    disk = filled_disk(0)
    disk.capacity_bytes = 10**8
    chain = reopened(disk)
    chain.write(batch(0, 10, size=60))
    taken = 4 * 128 + 10 * 108 + INDEX_PREALLOCATED_BYTES + THRESHOLD - 128 - 100
    assert 10**8 - disk.free_bytes == taken


def test_batch_that_finds_no_space_for_a_new_segment_is_not_written_at_all() -> None:
    """SN-28: though its first records had gone into the old one."""
    needed = 10 * 108 + 2 * 128
    for free in (*range(0, needed, 50), needed + THRESHOLD):
        disk = filled_disk(5)
        chain = reopened(disk)
        disk.capacity_bytes = 10**9
        disk.capacity_bytes = 10**9 - disk.free_bytes + free
        if free < needed:
            with pytest.raises(UnavailableError, match="no space"):
                chain.write(batch(5, 10, size=60))
            assert (chain.next_transaction_id, len(chain.segments.firsts)) == (5, 1)
            assert readable(chain) == list(range(5))
            disk.capacity_bytes += 10**6
        chain.write(batch(5, 10, size=60))
        chain.sync()
        assert readable(chain) == list(range(15))
        chain.close()
        assert readable(reopened(disk)) == list(range(15))


def test_removal_of_a_part_that_fails_closes_the_writer() -> None:
    disk = filled_disk(5)
    chain = reopened(disk)
    spoil(disk, 4)

    def full(operation: DiskOperation, where: str) -> None:
        if operation is DiskOperation.OPEN and where == path(9, ".idx"):
            raise OSError(errno.ENOSPC, "no space", where)

    disk.fault = full
    with pytest.raises(SegmentFailedError, match="a part of the batch was written"):
        chain.write(batch(5, 10, size=60))


def test_error_in_the_middle_leaves_nothing_open() -> None:
    disk = filled_disk(30)
    chain = make_chain(disk)
    disk.fault = fail_nth(DiskOperation.SYNC_DIRECTORY, 2)
    with pytest.raises(OSError, match="sync directory"):
        chain.open(Trust(local_low_water_mark=t(-1), index_is_proof=True))
    assert not chain.is_open
