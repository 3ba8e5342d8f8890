"""Opening a segment: what is kept, what is cut, what is never cut (SD-14 to SD-17, D1 to D5)."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest

from tests.storage.support import (
    DIRECTORY,
    OTHER_KEY,
    batch,
    fresh_disk,
    home,
    random,
    read_independently,
    record_data,
    t,
)
from waltz.errors import CorruptionError, SegmentFailedError
from waltz.limits import DATA_BYTES_MAX, INDEX_SYNC_RECORDS, OPEN_CHECK_RECORDS
from waltz.record import RECORD_HEADER
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.storage.log.damage import Damage
from waltz.storage.log.segment import NoFile, Segment, create_segment
from waltz.storage.log.segment_recovery import (
    Opened,
    TornTail,
    Trust,
    indexed_count,
    is_unfinished,
    open_segment,
)

SEG = f"{DIRECTORY}/0/{0:019d}.seg"
IDX = f"{DIRECTORY}/0/{0:019d}.idx"


def disk_with(count: int, *, first: int = 0, size: int | None = None) -> SimulatedDisk:
    """A partition directory with one closed segment of `count` records, all indexed."""
    disk = fresh_disk()
    disk.make_directory(f"{DIRECTORY}/0")
    disk.sync_directory(DIRECTORY)
    segment = create_segment(home(disk), t(first), 5)
    if count:
        segment.write(batch(first, count, size=size))
    segment.write_index()
    segment.close()
    return disk


def reopen(
    disk: SimulatedDisk,
    *,
    mark: int = -1,
    proof: bool = False,
    following: int | None = None,
    first: int = 0,
    ceiling: int | None = None,
) -> Opened:
    """Proof or not is whether our own release was the last to write the index."""
    trust = Trust(
        local_low_water_mark=t(mark),
        index_is_proof=proof,
        ceiling=None if ceiling is None else t(ceiling),
    )
    return open_segment(
        home(disk),
        t(first),
        trust,
        following=None if following is None else t(following),
        wall_milliseconds=7,
    )


def lose_index_from(disk: SimulatedDisk, count: int) -> None:
    """What a power cut may do to entries that were not synced."""
    cut(disk, IDX, 128 + 8 * count)


def ranges(damage: Damage) -> list[tuple[int, int]]:
    return [(first, following) for first, following in damage]


def good_records(segment: Segment, damage: Damage) -> list[int]:
    """IDs of the records that can be read, each checked; all others must be known as damaged."""
    found = []
    for number in range(segment.first_transaction_id, segment.next_transaction_id):
        if not any(first <= number < following for first, following in damage):
            records = segment.read(t(number), count_max=1, bytes_max=1)
            assert records == batch(number, 1)
            found.append(number)
    return found


def cut(disk: SimulatedDisk, path: str, size: int) -> None:
    disk.open(path).truncate(size)


def flip(disk: SimulatedDisk, path: str, position: int) -> None:
    disk.damage(path, position, bytes([disk.content(path)[position] ^ 0x10]))


def starts(count: int) -> list[int]:
    return [128 + int(offset) for offset in batch(0, count).offsets]


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


def test_power_cut_while_the_index_is_rebuilt_leaves_no_holes() -> None:
    """Half of the entries may be on disk, and the next opening looks at the last ones only."""
    count = 2 * INDEX_SYNC_RECORDS + 500
    disk = disk_with(count, size=1)
    disk.remove(IDX)
    disk.sync_directory(f"{DIRECTORY}/0")
    draw = random("rebuild")
    clones: list[SimulatedDisk] = []
    disk.fault = lambda operation, _: clones.extend(
        disk.crash_clone(draw) for _ in range(4) if operation is not DiskOperation.READ
    )
    reopen(disk)
    disk.fault = None
    assert len(clones) > 20
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
