"""Damage in the segments of a partition: remembered, read around, found (SD-17 to SD-23)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.storage.segment_chains import (
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
from tests.storage.support import DIRECTORY, OTHER_KEY, batch, fresh_disk, random, t
from waltz.errors import CorruptionError, StorageError
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.log.segment import Segment
from waltz.storage.log.segments import ScrubStep

# Damage


def test_reads_go_up_to_damage_and_on_behind_it() -> None:
    """SD-17: in a complete segment, at its ends, and in the last one."""
    disk = filled_disk(30)
    spoil(disk, 4, 5, 17, 18, 28)
    chain = reopened(disk)
    assert readable(chain) == sorted(set(range(30)) - {4, 5, 17, 18, 28})
    assert ranges(chain) == [(4, 6), (17, 18), (18, 19), (28, 29)]
    assert len(chain.read(t(0), count_max=100, bytes_max=10**6)) == 4
    assert len(chain.read(t(6), count_max=100, bytes_max=10**6)) == 11
    assert len(chain.read(t(19), count_max=100, bytes_max=10**6)) == 9
    with pytest.raises(
        CorruptionError, match="record 5 of partition 0 is damaged: records 4 to 5 must be"
    ):
        chain.read(t(5), count_max=10, bytes_max=10**6)


def test_damage_is_remembered_over_restarts_and_looked_at_again() -> None:
    """The opening alone would not come across it; and what was unreadable once may be good."""
    disk = filled_disk(30)
    spoil(disk, 4)
    good = reopened(disk)
    assert good.damage == ()
    with pytest.raises(CorruptionError):
        good.read(t(4), count_max=1, bytes_max=1)
    good.close_files()
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
        chain.read(t(4), count_max=1, bytes_max=1)
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
        assert chain.segment_count == 4
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
    assert chain.segment_count == 6
    assert readable(chain) == sorted(set(range(42)) - {29})
    chain.close()
    chain = reopened(disk)
    assert ranges(chain) == [(29, 30)]
    assert readable(chain) == sorted(set(range(42)) - {29})
    chain.repair(batch(29, 1, size=60))
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
    assert chain.segment_count == 1
    chain.repair(batch(2, 1, size=60))
    assert readable(chain) == [0, 1, 2, 3, 4, 5]


def test_wrong_index_entries_are_put_right_when_they_are_read() -> None:
    for number in range(9):
        disk = filled_disk(30)
        good = disk.content(path(0, ".idx"))
        chain = reopened(disk)
        flip(disk, path(0, ".idx"), 128 + 8 * number + 6)
        assert readable(chain) == list(range(30))
        assert (chain.damage, chain.indexes_healed) == ((), 1)
        assert disk.content(path(0, ".idx")) == good


def test_read_that_fails_once_is_tried_again() -> None:
    disk = filled_disk(30)
    chain = reopened(disk)
    disk.fault = fail_nth(DiskOperation.READ, 2)
    assert chain.read(t(3), count_max=1, bytes_max=1) == batch(3, 1, size=60)
    assert chain.damage == ()


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


# Scrubbing


def test_scrub_reads_everything_once_and_in_bounds() -> None:
    disk = filled_disk(50)
    chain = reopened(disk)
    for bytes_max in (1, 99, 100, 450, 10**6):
        total = scrub_all(chain, bytes_max)
        assert (total.next_transaction_id, total.records) == (50, 50)
        assert total.bytes_read == 5000
        assert (total.damaged, total.indexes_healed) == ((), 0)
    assert chain.scrub(t(50), 100) == ScrubStep(t(50), 0, 0, (), 0)
    assert chain.scrub(t(-5), 100).records == 1


def test_scrub_finds_every_flipped_byte_of_records_and_entries() -> None:
    """In complete segments and in the last one, while the partition is open."""
    disk = filled_disk(12)
    chain = reopened(disk)
    files = {path(0): 9, path(9): 3}
    for where, count in files.items():
        content = disk.content(where)
        for position in range(128, len(content), 3):
            flip(disk, where, position)
            number = t((0 if count == 9 else 9) + (position - 128) // 100)
            assert scrub_all(chain).damaged == ((number, number + 1),)
            assert ranges(chain) == [(number, number + 1)]
            disk.damage(where, position, content[position : position + 1])
            assert scrub_all(chain).damaged == ()
            assert chain.damage == (), "what is good again is not damaged"
        index = where[:-4] + ".idx"
        content = disk.content(index)
        for position in range(128, len(content)):
            flip(disk, index, position)
            step = scrub_all(chain)
            assert (step.indexes_healed, step.damaged, step.records) == (1, (), 12)
            assert disk.content(index) == content


def test_scrub_restores_the_headers_of_open_files() -> None:
    """What they say of their file was true when it was opened; reserved bytes are zero."""
    disk = filled_disk(12)
    chain = reopened(disk)
    for where in (path(0), path(0, ".idx"), path(9), path(9, ".idx")):
        good = disk.content(where)
        for position in (0, 3, 12, 27, 28, 31, 32, 39, 40, 90, 127):
            flip(disk, where, position)
            assert scrub_all(chain).indexes_healed == 1
            assert disk.content(where) == good
    disk.fault = fail_nth(DiskOperation.READ, 1)
    assert scrub_all(chain).records == 12


def test_scrub_reports_only_what_is_new() -> None:
    disk = filled_disk(30)
    spoil(disk, 3, 20)
    chain = reopened(disk)
    assert [tuple(found) for found in scrub_all(chain).damaged] == [(3, 4), (20, 21)]
    spoil(disk, 21)
    assert [tuple(found) for found in scrub_all(chain).damaged] == [(20, 22)]
    assert scrub_all(chain).damaged == ()


def test_scrub_does_not_look_beyond_what_is_synced() -> None:
    disk = fresh_disk()
    chain, _ = open_chain(disk)
    chain.write(batch(0, 3, size=60))
    chain.sync()
    chain.write(batch(3, 3, size=60))
    spoil(disk, 4)
    step = chain.scrub(t(0), 10**6)
    assert (step.next_transaction_id, step.records, step.damaged) == (3, 3, ())


def test_scrub_ends_at_a_segment_that_lags_behind_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SD-21: whatever has gone wrong, it says so and does not read the same place for ever."""
    chain, _ = open_chain(fresh_disk())
    chain.write(batch(0, 3, size=60))
    chain.sync()
    monkeypatch.setattr(Segment, "write_index", lambda self: None)
    chain.write(batch(3, 12, size=60))
    chain.sync()
    assert chain.segment_count > 1
    assert chain.scrub(t(0), 1).records == 1
    with pytest.raises(StorageError, match="records from 3 on are not known to be durable"):
        chain.scrub(t(0), 10**6)


def test_unreadable_blocks_are_damage_until_they_can_be_read() -> None:
    disk = filled_disk(30)
    chain = reopened(disk)

    def bad(operation: DiskOperation, where: str) -> None:
        if operation is DiskOperation.READ and where == path(9):
            raise OSError("bad sector")

    disk.fault = bad
    assert [tuple(found) for found in scrub_all(chain).damaged] == [(9, 18)]
    assert readable(chain) == [*range(9), *range(18, 30)]
    disk.fault = None
    assert scrub_all(chain).records == 30
    assert readable(chain) == list(range(30))


def test_lost_end_that_can_be_read_again_takes_appends_again() -> None:
    disk = filled_disk(30)
    where, offset = place(29)
    content = disk.content(where)
    disk.damage(where, offset + 5, b"!")
    chain = reopened(disk)
    assert ranges(chain) == [(29, 30)]
    disk.damage(where, offset + 5, content[offset + 5 : offset + 6])
    scrub_all(chain)
    assert readable(chain) == list(range(30))
    chain.write(batch(30, 2, size=60))
    chain.sync()
    assert chain.segment_count == 4
    assert readable(chain) == list(range(32))


# Space


def test_repair_names_what_is_damaged() -> None:
    chain = reopened(filled_disk(5))
    with pytest.raises(StorageError, match=r"no damage from 7 to 8 .* damaged are no records"):
        chain.repair(batch(7, 2, size=60))
