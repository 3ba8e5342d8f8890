"""What a data file really holds: around bad records by the index, and no further than told."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.storage.support import DIRECTORY, ZERO, batch, fresh_disk, home, random, t
from waltz.host import File
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.log.examination import (
    SCAN_BYTES,
    DataFile,
    Examination,
    examine,
    examine_segment,
    find_good_record,
    may_have_record,
    scan_file,
)
from waltz.storage.log.index_file import IndexFile
from waltz.storage.log.segment import SEGMENT_HEADER_BYTES, Segment, create_segment

SEG = f"{DIRECTORY}/0/{0:019d}.seg"
IDX = f"{DIRECTORY}/0/{0:019d}.idx"


def make_segment(count: int, *, size: int | None = None) -> tuple[SimulatedDisk, Segment]:
    disk = fresh_disk()
    disk.make_directory(f"{DIRECTORY}/0")
    segment = create_segment(home(disk), t(0), 5)
    if count:
        segment.write(batch(0, count, size=size))
        segment.write_index()
    return disk, segment


def data_of(disk: SimulatedDisk, *, size: int | None = None, file: File | None = None) -> DataFile:
    file = file or disk.open(SEG)
    index = IndexFile(disk.open(IDX), t(0), header_bytes=SEGMENT_HEADER_BYTES)
    return DataFile(file, file.size() if size is None else size, index, t(0), ZERO)


def starts(count: int, *, size: int | None = None) -> list[int]:
    return [128 + int(offset) for offset in batch(0, count, size=size).offsets]


def examined(data: DataFile, durable_next: int, until: int | None = None) -> Examination:
    return examine(
        data,
        t(0),
        128,
        durable_next=t(durable_next),
        until=None if until is None else t(until),
    )


def ranges(found: Examination) -> list[tuple[int, int]]:
    return [(first, following) for first, following in found.damage]


def flip(disk: SimulatedDisk, path: str, position: int) -> None:
    disk.damage(path, position, bytes([disk.content(path)[position] ^ 0x10]))


def test_scan_goes_on_over_window_ends_and_large_records() -> None:
    disk, segment = make_segment(0)
    sizes = [100, SCAN_BYTES - 300, 200, SCAN_BYTES + 5, 10, 3 * SCAN_BYTES, 0]
    for number, size in enumerate(sizes):
        segment.write(batch(number, 1, size=size))
    data = data_of(disk)
    offsets = scan_file(data, t(0), 128)
    assert offsets.tolist() == [128 + sum(sizes[:n]) + 40 * n for n in range(len(sizes) + 1)]
    short = data_of(disk, size=data.size - 1)
    assert scan_file(short, t(0), 128).tolist() == offsets.tolist()[:-1]
    assert scan_file(data, t(5), int(offsets[5])).tolist() == offsets.tolist()[5:]
    assert scan_file(data, t(0), 128, until=t(3)).tolist() == offsets.tolist()[:4]
    assert scan_file(data, t(3), 128, until=t(3)).tolist() == [128]


def test_good_records_are_all_there_is() -> None:
    disk, _ = make_segment(20)
    found = examined(data_of(disk), 20)
    assert found.offsets.tolist() == starts(20)[:-1]
    assert (found.next_transaction_id, found.end) == (20, starts(20)[-1])
    assert (found.damage, found.has_lost_end) == ((), False)
    assert found.is_whole(t(20))
    assert not found.is_whole(t(21))


def test_bad_records_are_walked_around_by_the_index() -> None:
    disk, _ = make_segment(20)
    for number in (0, 5, 6, 11):
        flip(disk, SEG, starts(20)[number] + 37)
    found = examined(data_of(disk), 20)
    assert ranges(found) == [(0, 1), (5, 7), (11, 12)]
    expected = starts(20)[:-1]
    expected[6] = 0
    assert found.offsets.tolist() == expected
    assert found.is_whole(t(20))


def test_a_bad_end_is_lost_as_far_as_it_was_durable() -> None:
    disk, _ = make_segment(20)
    flip(disk, SEG, starts(20)[15] + 4)
    disk.open(SEG).truncate(starts(20)[16])
    found = examined(data_of(disk), 18)
    assert ranges(found) == [(15, 18)]
    assert (found.next_transaction_id, found.end, found.has_lost_end) == (18, starts(20)[15], True)
    assert found.offsets.tolist() == starts(20)[:16]
    found = examined(data_of(disk), 15)
    assert (found.next_transaction_id, ranges(found), found.has_lost_end) == (15, [], False)


def test_examination_ends_where_it_is_told_or_where_a_range_ends() -> None:
    disk, _ = make_segment(20)
    flip(disk, SEG, starts(20)[8] + 37)
    flip(disk, SEG, starts(20)[9] + 37)
    for until, expected in ((0, 0), (5, 5), (8, 8), (9, 10), (10, 10), (11, 11)):
        found = examined(data_of(disk), 20, until)
        assert found.next_transaction_id == expected
        assert ranges(found) == ([(8, 10)] if until > 8 else [])
        assert not found.has_lost_end


@pytest.mark.parametrize(
    "damage",
    [
        lambda number: (0, struct.pack(">q", number + 1)),
        lambda number: (0, struct.pack(">q", number - 1)),
        lambda _: (28, struct.pack(">i", 2**31 - 1)),
        lambda _: (28, struct.pack(">i", -5)),
        lambda _: (28, struct.pack(">i", 0)),
        lambda _: (28, struct.pack(">i", 100)),
        lambda _: (0, bytes(40)),
    ],
)
def test_ids_and_lengths_that_are_plausible_do_not_lead_astray(
    damage: Callable[[int], tuple[int, bytes]],
) -> None:
    """A length beyond the file, into the next record, or to its end; the neighbour's ID."""
    for number in range(20):
        disk, _ = make_segment(20, size=60)
        place, data = damage(number)
        disk.damage(SEG, starts(20, size=60)[number] + place, data)
        assert ranges(examined(data_of(disk), 20)) == [(number, number + 1)]


def test_stale_and_swapped_blocks_are_noticed() -> None:
    """A record in another one's place has the other's ID, whatever its checksum says."""
    disk, _ = make_segment(20, size=60)
    content = disk.content(SEG)
    place = starts(20, size=60)
    one, other = content[place[4] : place[6]], content[place[11] : place[13]]
    disk.damage(SEG, place[4], other)
    disk.damage(SEG, place[11], one)
    assert ranges(examined(data_of(disk), 20)) == [(4, 6), (11, 13)]
    disk.damage(SEG, place[4], content[place[5] : place[6]])
    assert ranges(examined(data_of(disk), 20)) == [(4, 6), (11, 13)]


def test_zeroed_blocks_are_noticed() -> None:
    disk, _ = make_segment(200, size=60)
    disk.damage(SEG, 4096, bytes(8192))
    first, following = (4096 - 128) // 100, -((128 - 3 * 4096) // 100)
    assert ranges(examined(data_of(disk), 200)) == [(first, following)]


def test_wrong_index_entry_of_a_good_record_is_no_damage() -> None:
    disk, _ = make_segment(20)
    good = starts(20)[:-1]
    for value in (0, 1, 2**62, good[3], good[5] + 1):
        disk.damage(IDX, 128 + 8 * 5, struct.pack(">q", value))
        found = examined(data_of(disk), 20)
        assert (found.offsets.tolist(), found.damage) == (good, ())


def test_next_good_record_is_found_far_away() -> None:
    """Over windows and over chunks of the index."""
    count = 150_000
    disk, _ = make_segment(count, size=0)
    place = starts(count, size=0)
    disk.damage(SEG, place[10], bytes(place[count - 3] - place[10]))
    data = data_of(disk)
    assert find_good_record(data, t(10), place[10], last=t(count)) == (count - 3, place[count - 3])
    assert find_good_record(data, t(10), place[10], last=t(count - 4)) is None
    assert ranges(examined(data, count)) == [(10, count - 3)]


def test_entries_beyond_the_file_and_out_of_order_lead_nowhere() -> None:
    disk, _ = make_segment(50, size=60)
    draw = random("entries")
    values = [draw.randrange(-(2**63), 2**63) for _ in range(45)]
    disk.damage(IDX, 128, struct.pack(">45q", *values))
    good = starts(50, size=60)[:-1]
    assert examined(data_of(disk), 50).offsets.tolist() == good
    flip(disk, SEG, good[3] + 29)
    assert ranges(examined(data_of(disk), 50)) == [(0, 45)], "nothing vouches for the ones before"


@dataclass
class BadSector:
    """A file of which one byte cannot be read, and whatever is read with it."""

    file: File
    bad: int

    def size(self) -> int:
        return self.file.size()

    def read_at(self, offset: int, count: int) -> bytes:
        if offset <= self.bad < offset + count:
            raise OSError("bad sector")
        return self.file.read_at(offset, count)

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        self.file.write_at(offset, data)

    def truncate(self, size: int) -> None:
        self.file.truncate(size)

    def preallocate(self, size: int) -> None:
        self.file.preallocate(size)

    def sync(self) -> None:
        self.file.sync()

    def close(self) -> None:
        self.file.close()


def test_bad_sector_costs_the_records_in_its_block_only() -> None:
    disk, _ = make_segment(100, size=960)
    place = starts(100, size=960)
    bad = place[50] + 7
    found = examined(data_of(disk, file=BadSector(disk.open(SEG), bad)), 100)
    ((first, following),) = ranges(found)
    assert first <= 50 < following
    assert following - first <= 6


def test_segment_is_examined_from_a_good_neighbour_on() -> None:
    disk, segment = make_segment(50)
    disk.damage(IDX, 128 + 8 * 20, bytes(8 * 10))
    flip(disk, SEG, starts(50)[25] + 37)
    found = examine_segment(segment, t(27), t(28))
    assert found.start == 19
    assert ranges(found) == [(25, 26)]
    assert found.next_transaction_id == 28
    assert segment.correct_index(found.start, found.offsets) == 28 - 20
    flip(disk, SEG, starts(50)[25] + 29)
    disk.damage(IDX, 128 + 8 * 26, bytes(8 * 2))
    found = examine_segment(segment, t(27), t(28))
    assert ranges(found) == [(25, 30)], "neither its length nor an index leads on to 26"
    assert found.next_transaction_id == 30
    found = examine_segment(segment, t(1), t(2))
    assert (found.start, found.next_transaction_id) == (0, 2)


def test_old_record_in_its_place_is_damage_though_it_checks_out() -> None:
    """A stale block: what a truncation removed was there before, with other lengths. Only of the
    last record of all nothing tells how long it was."""
    for number in range(20):
        for size in (0, 59, 61, 500):
            disk, _ = make_segment(20, size=60)
            place = starts(20, size=60)[number]
            disk.damage(SEG, place, batch(number, 1, size=size).block)
            content = disk.content(SEG)
            disk.open(SEG).truncate(min(len(content), 128 + 20 * 100))
            found = examined(data_of(disk), 20)
            damaged = {one for first, end in found.damage for one in range(first, end)}
            if number < 19 or size > 60:
                assert number in damaged, (number, size)
            assert not damaged & set(range(number))


def test_old_records_that_go_on_for_a_while_are_damage_too() -> None:
    """As many as the block has, up to where index and data agree again."""
    disk, _ = make_segment(20, size=60)
    place = starts(20, size=60)
    old = batch(4, 3, size=20).block
    disk.damage(SEG, place[4], old)
    found = examined(data_of(disk), 20)
    assert ranges(found) == [(4, 6)]
    old = batch(4, 9, size=70).block
    disk.damage(SEG, place[4], old)
    assert ranges(examined(data_of(disk), 20)) == [(4, 14)]


def test_record_of_another_partition_is_damage_though_it_checks_out() -> None:
    """A misdirected write: the request ID says where a record belongs."""
    disk, _ = make_segment(20, size=60)
    place = starts(20, size=60)
    disk.damage(SEG, place[4], batch(4, 2, size=60, partition=1).block)
    disk.damage(SEG, place[11], batch(11, 1, size=60, partition=-1).block)
    assert ranges(examined(data_of(disk), 20)) == [(4, 6), (11, 12)]


def test_unsynced_records_are_not_looked_at() -> None:
    disk, segment = make_segment(10)
    segment.write(batch(10, 5))
    flip(disk, SEG, starts(15)[12] + 37)
    found = examine_segment(segment, t(5), t(15))
    assert (found.next_transaction_id, found.damage) == (10, ())


def test_search_for_records_behind_damage_ends_where_clients_have_made_it_dear() -> None:
    """Each of these heads, written by a client into its data, has a length that fits: to read them
    all would take a hundred times the data."""
    head = struct.pack(">q20xi", 7, 4000).ljust(44, b"\1")
    for count, expected in ((10, False), (1200, True)):
        content = bytes(128) + head * count + bytes(4096)
        disk = SimulatedDisk(contents={"/s": None, "/s/seg": content, "/s/idx": bytes(128)})
        index = IndexFile(disk.open("/s/idx"), t(0), header_bytes=128)
        data = DataFile(disk.open("/s/seg"), len(content), index, t(0), ZERO)
        assert may_have_record(data, 128, t(7)) == expected
