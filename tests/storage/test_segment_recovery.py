"""Opening a segment: what is kept, what is cut, what is never cut (SD-14 to SD-17, D1 to D5)."""

from __future__ import annotations

import struct
from contextlib import suppress
from zlib import crc32

import pytest

from tests.storage.segment_files import (
    IDX,
    SEG,
    cut,
    disk_with,
    flip,
    good_records,
    lose_index_from,
    ranges,
    reopen,
    starts,
)
from tests.storage.support import DIRECTORY, OTHER_KEY, batch, home, random, read_independently, t
from waltz.errors import CorruptionError, WaltzError
from waltz.limits import DATA_BYTES_MAX
from waltz.record import RECORD_HEADER
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.log.examination import SCAN_BYTES
from waltz.storage.log.segment import NoFile
from waltz.storage.log.segment_recovery import TornTail, indexed_count, is_unfinished


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2500])
@pytest.mark.parametrize("first", [0, 29])
@pytest.mark.parametrize("proof", [False, True])
def test_clean_segment_is_opened_as_it_was(count: int, first: int, *, proof: bool) -> None:
    disk = disk_with(count, first=first)
    paths = [f"{DIRECTORY}/0/{first:019d}{suffix}" for suffix in (".seg", ".idx")]
    before = [disk.content(path) for path in paths]
    disk.counts.clear()
    for mark in (-1, first + count - 1, (first + count) // 2):
        opened = reopen(disk, mark=min(mark, first + count - 1), first=first, proof=proof)
        assert (opened.torn, opened.damage, opened.indexes_healed) == (None, (), 0)
        assert opened.segment.next_transaction_id == first + count
        opened.segment.close()
    if count:
        reopen(disk, following=first + count, first=first)
    assert [disk.content(path) for path in paths] == before
    assert disk.counts[DiskOperation.WRITE] == 0


def test_torn_tail_is_cut_after_the_last_whole_record() -> None:
    """SD-15: every length a torn write can leave; the index had not come so far."""
    ends = starts(8)
    for size in range(ends[2], ends[-1]):
        disk = disk_with(8)
        lose_index_from(disk, 2)
        cut(disk, SEG, size)
        opened = reopen(disk, proof=True)
        segment = opened.segment
        kept = sum(end <= size for end in ends) - 1
        assert segment.next_transaction_id == kept
        assert segment.size == ends[kept]
        expected = TornTail(SEG, t(kept), ends[kept], size - ends[kept])
        assert opened.torn == (expected if size > ends[kept] else None)
        assert opened.damage == ()
        assert len(read_independently(disk.content(SEG), disk.content(IDX))) == kept
        assert len(disk.content(IDX)) == 128 + 8 * kept
        segment.write(batch(kept, 3))
        segment.write_index()
        assert len(read_independently(disk.content(SEG), disk.content(IDX))) == kept + 3


def test_torn_tail_of_the_originals_is_cut_although_its_index_was_ahead() -> None:
    """SD-15: the original writes an index entry before its record."""
    ends = starts(8)
    for size in range(128, ends[-1]):
        disk = disk_with(8)
        cut(disk, SEG, size)
        opened = reopen(disk)
        kept = sum(end <= size for end in ends) - 1
        assert (opened.segment.next_transaction_id, opened.damage) == (kept, ())
        assert len(read_independently(disk.content(SEG), disk.content(IDX))) == kept


def test_dirty_tail_is_cut_at_the_first_bad_record() -> None:
    """SD-16: 500 random corruptions above all that is proved."""
    ends = starts(40)
    draw = random("dirty")
    for number in range(500):
        disk = disk_with(40)
        known = draw.randrange(0, 40)
        if number % 2:
            lose_index_from(disk, known)
        position = draw.randrange(ends[known], ends[-1])
        disk.damage(SEG, position, draw.randbytes(draw.randrange(1, 100)))
        damaged = disk.content(SEG)
        reference = b"".join(_sound_records(damaged))
        opened = reopen(disk, mark=-1 if number % 2 else known - 1, proof=bool(number % 2))
        assert opened.segment.next_transaction_id >= known
        assert opened.damage == ()
        assert disk.content(SEG) == damaged[:128] + reference
        assert len(disk.content(IDX)) == 128 + 8 * opened.segment.next_transaction_id


def _sound_records(content: bytes) -> list[bytes]:
    """The records before the first one that does not check out, by a scan of its own."""
    records: list[bytes] = []
    position = 128
    while position + 40 <= len(content):
        number, length = struct.unpack_from(">q20xi", content, position)
        end = position + 36 + length
        if number != len(records) or length < 0 or end + 4 > len(content):
            break
        if crc32(content[position:end]) != int.from_bytes(content[end : end + 4], "big"):
            break
        records.append(content[position : end + 4])
        position = end + 4
    return records


@pytest.mark.parametrize("proof", [False, True])
def test_whatever_was_durable_and_is_not_good_is_damaged_and_nothing_else_is(
    *, proof: bool
) -> None:
    """SD-17: every byte of every record; by our index, or by the mark. Nothing is cut."""
    ends = starts(6)
    for number in range(6):
        for position in range(ends[number], ends[number + 1]):
            disk = disk_with(6)
            flip(disk, SEG, position)
            before = disk.content(SEG), disk.content(IDX)
            opened = reopen(disk, proof=proof, mark=-1 if proof else 5)
            assert ranges(opened.damage) in ([(number, number + 1)], []), position
            if number == 5:
                assert opened.damage
                assert opened.segment.has_lost_end
            assert opened.segment.next_transaction_id == 6
            assert opened.torn is None
            assert (disk.content(SEG), disk.content(IDX)) == before


def test_damage_around_a_good_record_leaves_it_readable() -> None:
    disk = disk_with(12)
    ends = starts(12)
    for number in (2, 3, 7, 11):
        flip(disk, SEG, ends[number] + 37)
    opened = reopen(disk, proof=True)
    assert ranges(opened.damage) == [(2, 4), (7, 8), (11, 12)]
    assert good_records(opened.segment, opened.damage) == [0, 1, 4, 5, 6, 8, 9, 10]


def test_lost_tail_is_damaged_as_far_as_it_is_known_to_have_been() -> None:
    """A data file that was cut short: by our index, by the mark, or not known at all."""
    for proof, mark, expected in ((True, -1, 6), (False, 4, 5), (False, -1, 3), (True, 8, 9)):
        disk = disk_with(6)
        cut(disk, SEG, starts(6)[3] + 5)
        opened = reopen(disk, proof=proof, mark=mark)
        assert opened.segment.next_transaction_id == expected
        assert ranges(opened.damage) == ([(3, expected)] if expected > 3 else [])
        assert opened.segment.has_lost_end == (expected > 3)
        assert good_records(opened.segment, opened.damage) == [0, 1, 2]
        assert len(disk.content(SEG)) == starts(6)[3] + (5 if expected > 3 else 0)


def test_torn_tail_behind_a_damaged_end_is_left_where_it_is() -> None:
    """Nobody knows where the damaged record ended."""
    disk = disk_with(6)
    flip(disk, SEG, starts(6)[5] + 3)
    disk.open(SEG).write_at(starts(6)[6], b"torn")
    before = disk.content(SEG)
    opened = reopen(disk, proof=True)
    assert (ranges(opened.damage), opened.torn) == ([(5, 6)], None)
    assert disk.content(SEG) == before


LENGTH = 28
"""The byte of a record at which its length begins."""


def doubts(
    disk: SimulatedDisk, *, mark: int = -1, proof: bool = True, ceiling: int | None = None
) -> bool:
    """Open the segment: whether it may have had more. The data are as they were when it is said."""
    before = disk.content(SEG)
    said: list[bytes] = []
    reopen(
        disk, proof=proof, mark=mark, ceiling=ceiling, lose=lambda: said.append(disk.content(SEG))
    )
    assert said in ([], [before])
    return bool(said)


@pytest.mark.parametrize("proof", [False, True])
def test_record_behind_a_lost_end_that_the_index_does_not_know_is_no_torn_tail(
    *, proof: bool
) -> None:
    """Seed 730095: records 3 and 4 rotted, a power cut took the index entry of record 5, which was
    acknowledged and lies there as it was."""
    disk = disk_with(6)
    lose_index_from(disk, 5)
    for number in (3, 4):
        flip(disk, SEG, starts(6)[number] + LENGTH)
    before = disk.content(SEG)
    assert doubts(disk, proof=proof, mark=4)
    assert disk.content(SEG) == before
    assert doubts(disk, proof=proof, mark=4), "as often as it is opened"
    disk.damage(SEG, starts(6)[5] + 19, bytes([7]))
    assert not doubts(disk, proof=proof, mark=4), "it rotted as well"


def test_what_lies_behind_a_lost_end_is_not_served() -> None:
    """Clients write what they like, also records into their records."""
    disk = disk_with(6)
    lose_index_from(disk, 5)
    flip(disk, SEG, starts(6)[4] + LENGTH)
    opened = reopen(disk, proof=True)
    assert (opened.segment.next_transaction_id, ranges(opened.damage)) == (5, [(4, 5)])
    assert good_records(opened.segment, opened.damage) == [0, 1, 2, 3]


def test_record_behind_a_lost_end_is_seen_wherever_reading_parts_the_file() -> None:
    size = SCAN_BYTES // 4 - 50
    disk = disk_with(6, size=size)
    lose_index_from(disk, 5)
    ends = 128 + batch(0, 6, size=size).offsets
    flip(disk, SEG, int(ends[4]) + LENGTH)
    tail = disk.content(SEG)[int(ends[5]) :]
    for place in range(int(ends[4]) + SCAN_BYTES - 50, int(ends[4]) + SCAN_BYTES + 50):
        cut(disk, SEG, int(ends[5]))
        disk.open(SEG).write_at(place, tail)
        assert doubts(disk), place


def test_lost_end_with_no_more_records_behind_it_raises_no_doubt() -> None:
    """The log ended where the index says: only the damage keeps the replica from voting."""
    ends = starts(6)
    for size in range(ends[5], ends[6]):
        disk = disk_with(6)
        lose_index_from(disk, 5)
        flip(disk, SEG, ends[4] + LENGTH)
        cut(disk, SEG, size)
        assert not doubts(disk), size
    disk = disk_with(6)
    flip(disk, SEG, ends[5] + LENGTH)
    assert not doubts(disk)


def test_failed_write_behind_a_lost_end_raises_no_doubt() -> None:
    """A process that opens its own log anew knows what it has acknowledged."""
    disk = disk_with(6)
    lose_index_from(disk, 5)
    flip(disk, SEG, starts(6)[4] + LENGTH)
    assert not doubts(disk, ceiling=5)
    assert doubts(disk, ceiling=6)


def test_torn_tail_raises_no_doubt_whatever_of_it_was_written() -> None:
    """Four unsynced records: any of their sectors, and of the index any entry."""
    draw = random("torn")
    for _ in range(300):
        disk = disk_with(40, size=200)
        ends = 128 + batch(0, 40, size=200).offsets
        lose_index_from(disk, draw.randrange(30, 37))
        for place in range(int(ends[36]) // 512 * 512 + 512, int(ends[40]), 512):
            if draw.random() < 0.5:
                disk.damage(SEG, place, bytes(min(512, int(ends[40]) - place)))
        if draw.random() < 0.3:
            cut(disk, SEG, draw.randrange(int(ends[36]), int(ends[40])))
        assert not doubts(disk)
        opened = reopen(disk, proof=True)
        assert (opened.damage, opened.segment.next_transaction_id >= 36) == ((), True)


def test_lost_data_file_that_had_more_records_than_its_index_raises_doubt() -> None:
    """Its header rotted, and perhaps a record in the middle; a power cut took index entries."""
    for indexed, rotten, expected in ((6, 4, False), (5, 4, True), (3, 4, True), (5, 5, False)):
        disk = disk_with(6)
        lose_index_from(disk, indexed)
        disk.damage(SEG, 12, bytes(16))
        flip(disk, SEG, starts(6)[rotten] + LENGTH)
        assert doubts(disk) == expected, (indexed, rotten)


def test_without_an_index_bytes_that_are_no_record_raise_doubt() -> None:
    """They may be a torn tail, or a record that was durable once."""
    for size, expected in ((None, False), (30, True), (0, True), (128, True), (136, False)):
        disk = disk_with(6)
        flip(disk, SEG, starts(6)[4] + 37)
        if size is None:
            lose_index_from(disk, 3)
        elif size == 0:
            disk.remove(IDX)
        else:
            cut(disk, IDX, size)
            disk.damage(IDX, 0, bytes(30))
        assert doubts(disk) == expected, size
    disk = disk_with(6)
    disk.remove(IDX)
    assert not doubts(disk)


def test_crash_while_an_index_is_made_anew_leaves_damage_as_it_was() -> None:
    """The old index is the only evidence that record 3, which is damaged, was durable: the evidence
    must not be gone before the judgement is durable."""
    draw = random("index made anew")
    for operation in (DiskOperation.WRITE, DiskOperation.SYNC, DiskOperation.TRUNCATE):
        for number in range(1, 8):
            disk = disk_with(6)
            flip(disk, SEG, starts(6)[3] + LENGTH)
            disk.damage(IDX, 20, b"rot")
            disk.fault = fail_nth(operation, number, done=1.0)
            with suppress(WaltzError, OSError):
                reopen(disk, proof=True)
            for _ in range(20):
                clone = disk.crash_clone(draw)
                opened = reopen(clone, proof=True)
                assert opened.segment.next_transaction_id == 6
                assert ranges(opened.damage) == [(3, 6)]


def test_impossible_lengths_end_the_scan() -> None:
    """Hazard D4: checked before it is used."""
    for length in (-1, -(2**31), 2**31 - 1, DATA_BYTES_MAX + 1, 10_000):
        disk = disk_with(5)
        disk.damage(SEG, starts(5)[3] + 28, struct.pack(">i", length))
        assert reopen(disk).segment.next_transaction_id == 3
        disk = disk_with(5)
        disk.damage(SEG, starts(5)[3] + 28, struct.pack(">i", length))
        assert ranges(reopen(disk, proof=True).damage) == [(3, 4)]


def test_whole_record_beyond_our_bound_is_damage_and_not_cut() -> None:
    """Another release may have been asked to keep it."""
    disk = disk_with(2)
    data = bytes(DATA_BYTES_MAX + 1)
    head = RECORD_HEADER.pack(2, bytes(16), 0, len(data), crc32(data))
    disk.damage(SEG, starts(2)[2], head + data + crc32(data, crc32(head)).to_bytes(4, "big"))
    before = disk.content(SEG)
    opened = reopen(disk)
    assert (ranges(opened.damage), opened.torn) == ([(2, 3)], None)
    assert disk.content(SEG) == before
    assert good_records(opened.segment, opened.damage) == [0, 1]


def test_complete_segment_must_be_complete() -> None:
    """SD-17 (a), hazard D5: what is missing before the next segment is damaged."""
    ends = starts(10)
    disk = disk_with(10)
    flip(disk, SEG, ends[9] + 5)
    opened = reopen(disk, following=10)
    assert ranges(opened.damage) == [(9, 10)]
    assert good_records(opened.segment, opened.damage) == list(range(9))
    disk = disk_with(10)
    cut(disk, SEG, ends[4] + 1)
    opened = reopen(disk, following=10)
    assert ranges(opened.damage) == [(4, 10)]
    assert len(disk.content(SEG)) == ends[4] + 1


def test_complete_segment_that_ends_early_by_its_own_word_says_so() -> None:
    """The one after it is missing altogether."""
    disk = disk_with(10)
    opened = reopen(disk, following=14)
    assert (opened.segment.next_transaction_id, opened.damage) == (10, ())
    cut(disk, SEG, 128)
    opened = reopen(disk, following=14)
    assert (opened.segment.next_transaction_id, ranges(opened.damage)) == (10, [(0, 10)])
    cut(disk, IDX, 128)
    opened = reopen(disk, following=14)
    assert (opened.segment.next_transaction_id, ranges(opened.damage)) == (14, [(0, 14)])


def test_complete_segment_that_does_not_end_with_its_last_record_is_damaged_there() -> None:
    """More bytes, or a last record that is an old, shorter one: the two look the same."""
    disk = disk_with(10)
    disk.damage(SEG, starts(10)[10], batch(10, 2).block + b"more")
    opened = reopen(disk, following=10)
    assert (opened.segment.next_transaction_id, ranges(opened.damage)) == (10, [(9, 10)])
    disk = disk_with(10, size=60)
    disk.damage(SEG, 128 + 900, batch(9, 1, size=50).block)
    opened = reopen(disk, following=10)
    assert ranges(opened.damage) == [(9, 10)]


def test_opening_a_complete_segment_reads_its_end_only() -> None:
    """SN-29: bounded, however large the segment is."""
    disk = disk_with(5000)
    disk.counts.clear()
    reopen(disk, following=5000)
    assert disk.counts[DiskOperation.READ] <= 8
    assert disk.counts[DiskOperation.SYNC] == disk.counts[DiskOperation.WRITE] == 0


def test_what_was_only_found_in_memory_is_synced_before_it_counts() -> None:
    """A vote means synced: records above the mark may never have reached the disk."""
    disk = disk_with(0)
    file = disk.open(SEG)
    file.write_at(128, batch(0, 5).block)
    assert reopen(disk).segment.next_transaction_id == 5
    for seed in range(20):
        clone = disk.crash_clone(random(seed))
        assert len(read_independently(clone.content(SEG), clone.content(IDX))) == 5


def test_ceiling_cuts_what_is_not_known_to_be_durable() -> None:
    disk = disk_with(4)
    disk.open(SEG).write_at(starts(4)[4], batch(4, 5).block)
    opened = reopen(disk, ceiling=4, proof=True)
    assert opened.segment.next_transaction_id == 4
    assert opened.torn == TornTail(SEG, t(4), starts(4)[4], len(batch(4, 5).block))
    assert reopen(disk, ceiling=100).segment.next_transaction_id == 4


def test_files_of_another_cluster_or_release_are_refused() -> None:
    """SD-25: two files do not err alike. Nothing was changed."""
    for place, data, message in (
        (12, OTHER_KEY.bytes, f"cluster key {OTHER_KEY}"),
        (3, b"\x63", "format version 99; this release knows 0"),
        (28, b"\0\0\0\7", "partition 7 from transaction 0; expected partition 0"),
    ):
        disk = disk_with(4)
        disk.damage(IDX, place, data)
        disk.damage(SEG, place, data)
        before = disk.content(SEG), disk.content(IDX)
        for following in (None, 4):
            with pytest.raises(CorruptionError, match=message):
                reopen(disk, proof=True, following=following)
        assert (disk.content(SEG), disk.content(IDX)) == before


def test_both_headers_hit_alike_are_damage() -> None:
    """The same bit of the cluster key in both files: no other cluster has such a key."""
    disk = disk_with(4)
    for path in (IDX, SEG):
        disk.damage(path, 20, bytes([disk.content(path)[20] ^ 2]))
    opened = reopen(disk, proof=True)
    assert (opened.segment.next_transaction_id, opened.damage) == (4, ((0, 4),))


@pytest.mark.parametrize("following", [None, 4])
def test_data_file_that_is_lost_or_not_its_own_is_damaged_as_a_whole(
    following: int | None,
) -> None:
    """Its index tells what was in it; the file stays as it is."""
    for change in ("missing", "short", "zero", "key", "version", "first", "without index"):
        disk = disk_with(4)
        if change == "missing":
            disk.remove(SEG)
        elif change == "short":
            cut(disk, SEG, 100)
        elif change == "zero":
            disk.damage(SEG, 0, bytes(300))
        else:
            place = {"key": 15, "version": 0, "first": 36, "without index": 28}[change]
            flip(disk, SEG, place)
        before = None if change == "missing" else disk.content(SEG)
        if change == "without index":
            disk.remove(IDX)
        opened = reopen(disk, following=following, proof=change != "without index")
        assert ranges(opened.damage) == [(0, 4)], change
        assert opened.segment.next_transaction_id == 4
        assert opened.segment.has_lost_end
        assert isinstance(opened.segment.data_file, NoFile)
        opened.segment.close()
        assert (disk.content(SEG) if disk.exists(SEG) else None) == before


def test_header_that_cannot_be_read_is_a_lost_data_file() -> None:
    """A segment less is no reason to refuse the others; a disk that reads nothing is."""
    disk = disk_with(4)

    def unreadable(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.READ and path.endswith(".seg"):
            raise OSError("unreadable")

    disk.fault = unreadable
    opened = reopen(disk, proof=True)
    assert ranges(opened.damage) == [(0, 4)]
    opened.segment.close()

    def all_unreadable(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.READ:
            raise OSError("unreadable")

    disk.fault = all_unreadable
    with pytest.raises(OSError, match="unreadable"):
        reopen(disk, proof=True)


def test_unfinished_is_only_what_has_no_record() -> None:
    disk = disk_with(0)
    assert not is_unfinished(home(disk), t(0))
    for content in (b"", bytes(50), bytes(128)):
        cut(disk, SEG, 0)
        disk.damage(SEG, 0, content)
        assert is_unfinished(home(disk), t(0))
        disk.damage(IDX, 128, (128).to_bytes(8, "big"))
        assert indexed_count(home(disk), t(0)) == 1
        assert not is_unfinished(home(disk), t(0)), "its index tells of a record"
        cut(disk, IDX, 128)
    disk.damage(SEG, 128, b"\0")
    assert not is_unfinished(home(disk), t(0))
