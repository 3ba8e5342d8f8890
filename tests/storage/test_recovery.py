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
    t,
)
from waltz.errors import CorruptionError
from waltz.limits import DATA_BYTES_MAX
from waltz.record import RECORD_HEADER
from waltz.sim.disk import Operation, SimulatedDisk
from waltz.storage.recovery import SCAN_BYTES, TornTail, is_unfinished, open_segment, scan_file
from waltz.storage.segment import Segment, create_segment

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
    following: int | None = None,
    first: int = 0,
    ceiling: int | None = None,
) -> tuple[Segment, TornTail | None]:
    return open_segment(
        home(disk),
        t(first),
        local_low_water_mark=t(mark),
        following=None if following is None else t(following),
        ceiling=None if ceiling is None else t(ceiling),
    )


def cut(disk: SimulatedDisk, path: str, size: int) -> None:
    disk.open(path).truncate(size)


def flip(disk: SimulatedDisk, path: str, position: int) -> None:
    disk.damage(path, position, bytes([disk.content(path)[position] ^ 0x10]))


def starts(count: int) -> list[int]:
    return [128 + int(offset) for offset in batch(0, count).offsets]


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2500])
@pytest.mark.parametrize("first", [0, 29])
def test_clean_segment_is_opened_as_it_was(count: int, first: int) -> None:
    disk = disk_with(count, first=first)
    paths = [f"{DIRECTORY}/0/{first:019d}{suffix}" for suffix in (".seg", ".idx")]
    before = [disk.content(path) for path in paths]
    for mark in (-1, first + count - 1, (first + count) // 2):
        segment, torn = reopen(disk, mark=min(mark, first + count - 1), first=first)
        assert torn is None
        assert segment.next_transaction_id == first + count
        segment.close()
    if count:
        reopen(disk, following=first + count, first=first)
    assert [disk.content(path) for path in paths] == before


def test_torn_tail_is_cut_after_the_last_whole_record() -> None:
    """SD-15: every length a torn write can leave."""
    ends = starts(8)
    for size in range(128, ends[-1]):
        disk = disk_with(8)
        cut(disk, SEG, size)
        segment, torn = reopen(disk)
        kept = sum(end <= size for end in ends) - 1
        assert segment.next_transaction_id == kept
        assert segment.size == ends[kept]
        expected = TornTail(SEG, t(kept), ends[kept], size - ends[kept])
        assert torn == (expected if size > ends[kept] else None)
        assert len(read_independently(disk.content(SEG), disk.content(IDX))) == kept
        segment.write(batch(kept, 3))
        segment.write_index()
        assert len(read_independently(disk.content(SEG), disk.content(IDX))) == kept + 3


def test_dirty_tail_is_cut_at_the_first_bad_record() -> None:
    """SD-16: 500 random corruptions above the mark."""
    ends = starts(40)
    draw = random("dirty")
    for _ in range(500):
        disk = disk_with(40)
        mark = draw.randrange(-1, 39)
        position = draw.randrange(ends[mark + 1], ends[-1])
        disk.damage(SEG, position, draw.randbytes(draw.randrange(1, 100)))
        damaged = disk.content(SEG)
        reference = b"".join(_sound_records(damaged))
        segment, _ = reopen(disk, mark=mark)
        assert segment.next_transaction_id > mark
        assert disk.content(SEG) == damaged[:128] + reference
        assert len(disk.content(IDX)) == 128 + 8 * segment.next_transaction_id


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


def test_damage_at_or_below_the_mark_is_refused_and_nothing_is_cut() -> None:
    """SD-17: whatever the scan can see of it."""
    ends = starts(6)
    for mark in range(6):
        for position in range(ends[mark], ends[mark + 1]):
            disk = disk_with(6)
            flip(disk, SEG, position)
            before = disk.content(SEG), disk.content(IDX)
            with pytest.raises(CorruptionError, match=f"record {mark} does not check out"):
                reopen(disk, mark=mark)
            assert (disk.content(SEG), disk.content(IDX)) == before


def test_missing_records_below_the_mark_are_damage() -> None:
    disk = disk_with(6)
    cut(disk, SEG, starts(6)[3])
    with pytest.raises(CorruptionError, match=r"record 3 does not check out .* all before 6"):
        reopen(disk, mark=5)
    reopen(disk, mark=2)


def test_damage_below_an_indexed_thousand_is_no_torn_tail() -> None:
    """SD-17: the index reaches into a thousand only after all below it was synced."""
    ends = starts(2001)
    disk = disk_with(2001)
    flip(disk, SEG, ends[1999] + 3)
    before = disk.content(SEG)
    with pytest.raises(CorruptionError, match=r"record 1999 .* all before 2000 were durable"):
        reopen(disk)
    assert disk.content(SEG) == before
    flip(disk, SEG, ends[1999] + 3)
    flip(disk, SEG, ends[2000] + 3)
    segment, torn = reopen(disk)
    assert segment.next_transaction_id == 2000
    assert torn


def test_zeroed_index_entry_at_the_checkpoint_makes_the_scan_start_earlier() -> None:
    """Hazard D1: 1002 valid records, index entry 1000 zeroed; the original refuses to start."""
    disk = disk_with(1002)
    good = disk.content(IDX)
    disk.damage(IDX, 128 + 8 * 1000, bytes(8))
    segment, torn = reopen(disk)
    assert torn is None
    assert segment.next_transaction_id == 1002
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
        segment, torn = reopen(disk, mark=draw.choice((-1, 500, 999)))
        assert (segment.next_transaction_id, torn) == (1100, None)
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
    segment, torn = reopen(disk)
    assert (segment.next_transaction_id, torn) == (1100, None)
    assert disk.content(IDX) == good
    cut(disk, IDX, 128)
    reopen(disk, following=1100)
    assert disk.content(IDX) == good


def test_index_longer_than_the_data_is_cut() -> None:
    """The original writes entries first."""
    disk = disk_with(10)
    cut(disk, SEG, starts(10)[7])
    segment, torn = reopen(disk)
    assert (segment.next_transaction_id, torn) == (7, None)
    assert len(disk.content(IDX)) == 128 + 8 * 7


def test_impossible_lengths_end_the_scan() -> None:
    """Hazard D4: checked before it is used."""
    for length in (-1, -(2**31), 2**31 - 1, DATA_BYTES_MAX + 1, 10_000):
        disk = disk_with(5)
        disk.damage(SEG, starts(5)[3] + 28, struct.pack(">i", length))
        assert reopen(disk)[0].next_transaction_id == 3


def test_whole_record_beyond_our_bound_is_refused_not_cut() -> None:
    disk = disk_with(2)
    data = bytes(DATA_BYTES_MAX + 1)
    head = RECORD_HEADER.pack(2, bytes(16), 0, len(data), crc32(data))
    disk.damage(SEG, starts(2)[2], head + data + crc32(data, crc32(head)).to_bytes(4, "big"))
    with pytest.raises(CorruptionError, match=r"record 2 .* has 16777217 bytes"):
        reopen(disk)


def test_complete_segment_must_be_complete() -> None:
    """SD-17 (a), hazard D5: never a gap before the next segment."""
    disk = disk_with(10)
    ends = starts(10)
    flip(disk, SEG, ends[9] + 5)
    with pytest.raises(CorruptionError, match=r"record 9 does not check out .* all before 10"):
        reopen(disk, following=10)
    disk = disk_with(10)
    for following in (9, 11):
        with pytest.raises(CorruptionError):
            reopen(disk, following=following)
    disk.damage(SEG, ends[10], b"more")
    with pytest.raises(CorruptionError, match="ends with record 9 at byte"):
        reopen(disk, following=10)


def test_opening_a_complete_segment_reads_its_end_only() -> None:
    """SN-29: bounded, however large the segment is."""
    disk = disk_with(5000)
    disk.counts.clear()
    reopen(disk, following=5000)
    assert disk.counts[Operation.READ] <= 8
    assert disk.counts[Operation.SYNC] == disk.counts[Operation.WRITE] == 0


def test_what_was_only_found_in_memory_is_synced_before_it_counts() -> None:
    """A vote means synced: records above the mark may never have reached the disk."""
    disk = disk_with(0)
    file = disk.open(SEG)
    file.write_at(128, batch(0, 5).block)
    segment, _ = reopen(disk)
    assert segment.next_transaction_id == 5
    for seed in range(20):
        clone = disk.crash_clone(random(seed))
        assert len(read_independently(clone.content(SEG), clone.content(IDX))) == 5


def test_ceiling_cuts_what_is_not_known_to_be_durable() -> None:
    disk = disk_with(4)
    disk.open(SEG).write_at(starts(4)[4], batch(4, 5).block)
    segment, torn = reopen(disk, ceiling=4)
    assert segment.next_transaction_id == 4
    assert torn == TornTail(SEG, t(4), starts(4)[4], len(batch(4, 5).block))
    assert reopen(disk, ceiling=100)[0].next_transaction_id == 4


@pytest.mark.parametrize("path", [SEG, IDX])
def test_files_of_another_cluster_are_refused(path: str) -> None:
    disk = disk_with(4)
    disk.damage(path, 12, OTHER_KEY.bytes)
    with pytest.raises(CorruptionError, match=f"cluster key {OTHER_KEY}"):
        reopen(disk)


def test_data_file_that_is_missing_or_cannot_be_read_is_an_operating_system_error() -> None:
    disk = disk_with(4)
    disk.remove(SEG)
    with pytest.raises(FileNotFoundError):
        reopen(disk)


def test_unfinished_is_only_what_has_no_record() -> None:
    disk = disk_with(0)
    assert not is_unfinished(home(disk), t(0))
    for content in (b"", bytes(50), bytes(128)):
        cut(disk, SEG, 0)
        disk.damage(SEG, 0, content)
        assert is_unfinished(home(disk), t(0))
    disk.damage(SEG, 128, b"\0")
    assert not is_unfinished(home(disk), t(0))


def test_scan_goes_on_over_window_ends_and_large_records() -> None:
    disk = fresh_disk()
    disk.make_directory(f"{DIRECTORY}/0")
    segment = create_segment(home(disk), t(0), 5)
    sizes = [100, SCAN_BYTES - 300, 200, SCAN_BYTES + 5, 10, 3 * SCAN_BYTES, 0]
    for number, size in enumerate(sizes):
        segment.write(batch(number, 1, size=size))
    file = disk.open(SEG)
    offsets = scan_file(file, t(0), 128, file.size())
    assert offsets.tolist() == [128 + sum(sizes[:n]) + 40 * n for n in range(len(sizes) + 1)]
    assert scan_file(file, t(0), 128, file.size() - 1).tolist() == offsets.tolist()[:-1]
    assert scan_file(file, t(5), int(offsets[5]), file.size()).tolist() == offsets.tolist()[5:]


def test_power_cut_while_the_index_is_rebuilt_leaves_no_holes() -> None:
    """Half of the entries may be on disk, and the next opening looks at the last ones only."""
    disk = disk_with(4000)
    disk.remove(IDX)
    disk.sync_directory(f"{DIRECTORY}/0")
    draw = random("rebuild")
    clones: list[SimulatedDisk] = []
    disk.fault = lambda operation, _: clones.extend(
        disk.crash_clone(draw) for _ in range(8) if operation is not Operation.READ
    )
    reopen(disk)
    assert len(clones) > 40
    for clone in clones:
        segment, torn = reopen(clone)
        assert (segment.next_transaction_id, torn) == (4000, None)
        assert segment.read(t(0), count_max=4000, bytes_max=10**9) == batch(0, 4000)
