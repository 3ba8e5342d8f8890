"""The segments of a partition as one log: damage, scrubbing, roll-over, space (SD-17 to SD-23)."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable

import pytest

from tests.storage.support import DIRECTORY, OTHER_KEY, batch, fresh_disk, home, random, t
from waltz.errors import (
    CorruptionError,
    NotFoundError,
    SegmentFailedError,
    StorageError,
    UnavailableError,
)
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.log.index_file import INDEX_PREALLOCATED_BYTES
from waltz.storage.log.preallocation import PREALLOCATED_BYTES_MIN
from waltz.storage.log.segment import Segment
from waltz.storage.log.segment_recovery import TornTail, Trust
from waltz.storage.log.segments import ScrubStep, SegmentChain

THRESHOLD = 1000
"""Nine records of 100 bytes, and one more."""


def path(first: int, suffix: str = ".seg") -> str:
    return f"{DIRECTORY}/0/{first:019d}{suffix}"


def make_chain(disk: SimulatedDisk, *, threshold: int = THRESHOLD) -> SegmentChain:
    """Not opened."""
    return SegmentChain(
        home(disk), segment_bytes_threshold=threshold, wall_milliseconds=lambda: 1_700_000_000_001
    )


def open_chain(
    disk: SimulatedDisk,
    *,
    threshold: int = THRESHOLD,
    mark: int = -1,
    proof: bool = True,
    ceiling: int | None = None,
) -> tuple[SegmentChain, TornTail | None]:
    chain = make_chain(disk, threshold=threshold)
    trust = Trust(
        local_low_water_mark=t(mark),
        index_is_proof=proof,
        ceiling=None if ceiling is None else t(ceiling),
    )
    return chain, chain.open(trust)


def filled_disk(count: int, *, threshold: int = THRESHOLD) -> SimulatedDisk:
    """A cleanly closed chain of records of 100 bytes."""
    disk = fresh_disk()
    chain, _ = open_chain(disk, threshold=threshold)
    chain.write(batch(0, count, size=60))
    chain.sync()
    chain.close()
    return disk


def reopened(disk: SimulatedDisk, *, mark: int = -1) -> SegmentChain:
    chain, torn = open_chain(disk, mark=mark)
    assert torn is None
    return chain


def ranges(chain: SegmentChain) -> list[tuple[int, int]]:
    return [(first, following) for first, following in chain.damage]


def readable(chain: SegmentChain) -> list[int]:
    """IDs of all records that are served, one by one; each is what was written."""
    found = []
    for number in range(chain.next_transaction_id):
        try:
            records = chain.read(t(number), count_max=1, bytes_max=1)
        except CorruptionError:
            continue
        assert records == batch(number, 1, size=60)
        found.append(number)
    return found


def scrub_all(chain: SegmentChain, bytes_max: int = 500) -> ScrubStep:
    """Scrub everything step by step; return the sum of the steps."""
    position, total = t(0), ScrubStep(t(0), 0, 0, (), 0)
    while position < chain.next_transaction_id:
        step = chain.scrub(position, bytes_max)
        assert step.next_transaction_id > position
        assert step.bytes_read <= bytes_max + 100
        position = step.next_transaction_id
        total = ScrubStep(
            position,
            total.bytes_read + step.bytes_read,
            total.records + step.records,
            total.damaged + step.damaged,
            total.indexes_healed + step.indexes_healed,
        )
    return total


def flip(disk: SimulatedDisk, where: str, position: int) -> None:
    disk.damage(where, position, bytes([disk.content(where)[position] ^ 0x10]))


def place(number: int) -> tuple[str, int]:
    """The file and the first byte of a record; segments have nine records."""
    return path(number - number % 9), 128 + 100 * (number % 9)


def spoil(disk: SimulatedDisk, *numbers: int) -> None:
    for number in numbers:
        where, offset = place(number)
        flip(disk, where, offset + 50)


def test_chain_is_one_log_over_all_segments() -> None:
    disk = fresh_disk()
    chain, _ = open_chain(disk, threshold=300)
    chain.write(batch(0, 20, size=60))
    chain.sync()
    assert (chain.next_transaction_id, chain.segment_count) == (20, 10)
    assert chain.read(t(3), count_max=9, bytes_max=10**6) == batch(3, 9, size=60)
    chain.truncate(t(4))
    assert (chain.next_transaction_id, chain.segment_count) == (5, 3)
    chain.close()
    chain = reopened(disk, mark=4)
    assert (chain.next_transaction_id, chain.damage) == (5, ())


def test_ceiling_removes_whole_segments() -> None:
    disk = fresh_disk()
    chain, _ = open_chain(disk, threshold=300)
    chain.write(batch(0, 6, size=60))
    chain.sync()
    chain, torn = open_chain(disk, ceiling=3)
    assert chain.next_transaction_id == 3
    assert torn is not None
    assert chain.segment_count == 2


def test_removed_files_are_gone_and_others_stay() -> None:
    disk = filled_disk(20)
    disk.open(f"{DIRECTORY}/0/notes.txt", create=True)
    disk.damage(path(9), 12, OTHER_KEY.bytes)
    chain = reopened(disk)
    chain.repair(batch(9, 9, size=60))
    spoil(disk, 3)
    chain.scrub(t(0), 10**6)
    assert len(disk.list_directory(f"{DIRECTORY}/0")) == 6 + 3
    chain.close()
    chain.remove_files()
    assert disk.list_directory(f"{DIRECTORY}/0") == ["notes.txt"]
    assert not chain.is_open


def test_removal_interrupted_anywhere_leaves_a_shorter_log_or_none() -> None:
    """No index without data stays, which would tell of records that are lost."""
    disk = filled_disk(30)
    chain = make_chain(disk)
    clones: list[SimulatedDisk] = []
    draw = random("removal")
    disk.fault = lambda *_: clones.extend(disk.crash_clone(draw) for _ in range(4))
    chain.remove_files()
    for clone in clones:
        left = reopened(clone)
        assert left.damage == ()
        assert left.next_transaction_id in (0, 9, 18, 27, 30)


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


# Checksums


def test_checksum_is_that_of_the_bytes_of_the_records() -> None:
    """SD-23: whatever the segments are."""
    one, other = reopened(filled_disk(30)), reopened(filled_disk(30, threshold=10**6))
    for first, last in ((0, 29), (3, 20), (7, 7), (9, 8), (0, -1)):
        block = batch(first, last - first + 1, size=60).block
        expected = hashlib.sha256(block).hexdigest()
        assert one.checksum(t(first), t(last)) == other.checksum(t(first), t(last)) == expected
    for first, last in ((0, 30), (-1, 5), (5, 3)):
        with pytest.raises(NotFoundError, match="it holds those before 30"):
            one.checksum(t(first), t(last))


def test_checksum_over_damage_is_refused() -> None:
    disk = filled_disk(30)
    spoil(disk, 12)
    chain = reopened(disk)
    with pytest.raises(CorruptionError, match="record 12"):
        chain.checksum(t(0), t(29))
    assert chain.checksum(t(13), t(29))


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
            assert (chain.next_transaction_id, chain.segment_count) == (5, 1)
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


def test_opening_is_bounded_however_many_segments_there_are() -> None:
    """SN-29: of each complete segment its headers, its sizes and its last record."""
    disk = filled_disk(900)
    disk.counts.clear()
    chain = reopened(disk)
    assert chain.segment_count == 100
    assert disk.counts[DiskOperation.READ] <= 100 * 9
    assert disk.counts[DiskOperation.SYNC] == 2, "both files of the last one"
    assert disk.counts[DiskOperation.WRITE] == 0


def test_repair_names_what_is_damaged() -> None:
    chain = reopened(filled_disk(5))
    with pytest.raises(StorageError, match=r"no damage from 7 to 8; damaged are no records"):
        chain.repair(batch(7, 2, size=60))
