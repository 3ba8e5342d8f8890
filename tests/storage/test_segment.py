"""One segment: bytes, one write and one sync, checked reads, failures (SD-10 to SD-14, SN-09)."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.storage.support import (
    DIRECTORY,
    KEY,
    OTHER_KEY,
    batch,
    fresh_disk,
    home,
    random,
    read_independently,
    t,
)
from waltz.errors import CorruptionError, SegmentFailedError, UnavailableError
from waltz.limits import INDEX_CHECKPOINT_RECORDS, INDEX_SYNC_BYTES, INDEX_SYNC_RECORDS
from waltz.record import NewRecord, pack_records
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.storage.log.index_file import INDEX_PREALLOCATED_BYTES
from waltz.storage.log.preallocation import PREALLOCATED_BYTES_MIN
from waltz.storage.log.segment import Segment, SegmentHome, create_segment
from waltz.types import PartitionId

SEG = f"{DIRECTORY}/0/{0:019d}.seg"
IDX = f"{DIRECTORY}/0/{0:019d}.idx"


def make_segment(
    disk: SimulatedDisk | None = None, first: int = 0
) -> tuple[SimulatedDisk, Segment]:
    disk = disk or fresh_disk()
    if not disk.exists(f"{DIRECTORY}/0"):
        disk.make_directory(f"{DIRECTORY}/0")
        disk.sync_directory(DIRECTORY)
    return disk, create_segment(home(disk), t(first), 0x1A1FD11FA62)


def data_of(segment: Segment, first: int, count: int, bytes_max: int = 10**9) -> list[int]:
    records = segment.read(t(first), count_max=count, bytes_max=bytes_max)
    assert records == batch(first, len(records))
    return list(range(records.first_transaction_id, records.next_transaction_id))


def has_failed(segment: Segment) -> bool:
    return segment.failed


def test_headers_and_records_have_the_worked_bytes() -> None:
    """SD-10, SD-11, SD-13: the example of the format description."""
    disk, segment = make_segment()
    request_id = bytes.fromhex("00000001000000010000000000000002")
    segment.write(pack_records(t(0), [NewRecord(request_id, 0x11223344, b"hello", 0x3610A686)]))
    segment.write_index()
    header = "00000000 000001a1fd11fa62" + KEY.hex + "00000000" + 8 * "00" + 88 * "00"
    record = (
        "0000000000000000 00000001000000010000000000000002 11223344 00000005 3610a686"
        " 68656c6c6f ee9a12e9"
    )
    assert disk.content(SEG) == bytes.fromhex(header + record)
    assert disk.content(IDX) == bytes.fromhex(header + "0000000000000080")


def test_append_is_one_write_and_one_sync_and_then_the_index() -> None:
    """SD-12: what the index says is never ahead of the data, and costs no sync."""
    disk, segment = make_segment()
    segment.write(batch(0, 500))
    segment.sync()
    order = []
    disk.fault = lambda operation, path: order.append((operation, path[-3:]))
    segment.write(batch(500, 500))
    assert len(disk.content(IDX)) == 128 + 8 * 500
    segment.sync()
    assert order == [
        (DiskOperation.WRITE, "seg"),
        (DiskOperation.SYNC, "seg"),
        (DiskOperation.WRITE, "idx"),
    ]
    segment.sync()
    assert len(order) == 3
    assert len(read_independently(disk.content(SEG), disk.content(IDX))) == 1000
    assert len(disk.content(IDX)) == 128 + 8 * 1000


def test_index_is_synced_at_each_multiple_only() -> None:
    """SD-13: and nothing after a multiple is written before all up to it is durable."""
    disk, segment = make_segment(first=7)
    synced = []
    disk.fault = lambda operation, path: (
        synced.append(segment.durable_next)
        if operation is DiskOperation.SYNC and path.endswith("idx")
        else None
    )
    every = INDEX_SYNC_RECORDS
    written = 7
    for upto in (every - 1, every, every + 1, 2 * every - 3, 2 * every + 5, 4 * every):
        segment.write(batch(written, upto - written, size=0))
        segment.sync()
        written = upto
    assert synced == [every, 2 * every + 5, 4 * every, 4 * every]
    assert every % INDEX_CHECKPOINT_RECORDS == 0
    index = disk.content(f"{DIRECTORY}/0/{7:019d}.idx")
    assert len(index) == 128 + 8 * (4 * every - 7)
    for seed in range(20):
        clone = disk.crash_clone(random(seed))
        assert clone.content(f"{DIRECTORY}/0/{7:019d}.idx") == index


def test_index_is_synced_too_after_so_many_bytes() -> None:
    """Or a power cut among large records would have the next opening read the whole segment."""
    disk, segment = make_segment()
    size = 16 * 1024 * 1024 - 40
    syncs = []
    for number in range(9):
        segment.write(batch(number, 1, size=size))
        before = disk.counts[DiskOperation.SYNC]
        segment.sync()
        syncs.append(disk.counts[DiskOperation.SYNC] - before)
    assert syncs == [1, 1, 1, 2, 1, 1, 1, 2, 1]
    assert 4 * (size + 40) == INDEX_SYNC_BYTES
    assert len(disk.crash_clone(random(1)).content(IDX)) >= 128 + 8 * 8


def test_power_cut_leaves_no_hole_before_the_last_multiple_that_the_index_reaches_beyond() -> None:
    """However many multiples one sync of the data passes."""
    disk, segment = make_segment()
    segment.write(batch(0, 3 * INDEX_SYNC_RECORDS + 50, size=0))
    cuts: list[SimulatedDisk] = []
    draw = random("holes")

    def cut(operation: DiskOperation, path: str) -> None:
        if path.endswith("idx"):
            cuts.extend(disk.crash_clone(draw) for _ in range(6))

    disk.fault = cut
    segment.sync()
    disk.fault = None
    cuts.extend(disk.crash_clone(draw) for _ in range(6))
    good = disk.content(IDX)
    reached = set()
    for clone in cuts:
        index = clone.content(IDX)
        multiple = max(0, (len(index) - 128) // 8 - 1) // INDEX_SYNC_RECORDS * INDEX_SYNC_RECORDS
        reached.add(multiple)
        assert index[: 128 + 8 * multiple] == good[: 128 + 8 * multiple]
    assert reached == {number * INDEX_SYNC_RECORDS for number in range(4)}


def test_reads_find_indexed_and_not_yet_indexed_records() -> None:
    _, segment = make_segment()
    segment.write(batch(0, 10))
    segment.write_index()
    segment.write(batch(10, 5))
    segment.write(batch(15, 5))
    segment.sync()
    for first in range(21):
        for count in (0, 1, 3, 20):
            assert data_of(segment, first, count) == list(range(first, min(20, first + count)))
    segment.write_index()
    assert data_of(segment, 0, 100) == list(range(20))


def test_reads_are_bounded_in_bytes_but_return_one_record_at_least() -> None:
    _, segment = make_segment()
    segment.write(batch(0, 10))
    offsets = batch(0, 10).offsets
    for count in range(1, 11):
        size = int(offsets[count])
        assert data_of(segment, 0, 100, size) == list(range(count))
        assert data_of(segment, 0, 100, size - 1) == list(range(max(1, count - 1)))


def test_a_read_is_one_read_of_the_range() -> None:
    disk, segment = make_segment()
    segment.write(batch(0, 100))
    segment.write_index()
    disk.counts.clear()
    segment.read(t(20), count_max=50, bytes_max=10**6)
    assert disk.counts == {DiskOperation.READ: 2}


def test_every_flipped_byte_is_detected_and_never_served() -> None:
    """SD-17: data and index alike."""
    disk, segment = make_segment()
    segment.write(batch(0, 4))
    segment.write_index()
    good = {SEG: disk.content(SEG), IDX: disk.content(IDX)}
    for path, content in good.items():
        for position in range(128, len(content)):
            disk.damage(path, position, bytes([content[position] ^ 0x41]))
            with pytest.raises(CorruptionError):
                segment.read(t(0), count_max=4, bytes_max=10**6)
            disk.damage(path, position, content[position : position + 1])
    assert data_of(segment, 0, 4) == [0, 1, 2, 3]


def test_good_records_next_to_a_damaged_one_are_served() -> None:
    disk, segment = make_segment()
    segment.write(batch(0, 4))
    disk.damage(SEG, 128 + int(batch(0, 4).offsets[1]) + 38, b"\xff")
    assert data_of(segment, 0, 1) == [0]
    assert data_of(segment, 2, 2) == [2, 3]
    with pytest.raises(CorruptionError, match=r"\.seg from byte 1\d\d: record 1 does not"):
        segment.read(t(1), count_max=2, bytes_max=10**6)


def test_index_cut_short_is_damage() -> None:
    disk, segment = make_segment()
    segment.write(batch(0, 4))
    segment.write_index()
    disk.open(IDX).truncate(128 + 12)
    with pytest.raises(
        CorruptionError, match="impossible offsets for 1 records from transaction 1"
    ):
        segment.read(t(1), count_max=1, bytes_max=10**6)


def test_truncate_keeps_exactly_what_it_was_told() -> None:
    """SN-07."""
    for keep in range(-1, 20):
        disk, segment = make_segment()
        segment.write(batch(0, 10))
        segment.write_index()
        segment.write(batch(10, 10))
        segment.truncate(t(keep))
        assert segment.next_transaction_id == keep + 1
        assert data_of(segment, 0, 100) == list(range(keep + 1))
        assert len(read_independently(disk.content(SEG), disk.content(IDX))) == keep + 1
        segment.write(batch(keep + 1, 5))
        segment.write_index()
        assert len(read_independently(disk.content(SEG), disk.content(IDX))) == keep + 6


def test_truncate_cuts_the_index_before_the_data() -> None:
    disk, segment = make_segment()
    segment.write(batch(0, 10))
    segment.write_index()
    order = []
    disk.fault = lambda operation, path: order.append((operation, path[-3:]))
    segment.truncate(t(4))
    assert [step for step in order if step[0] is not DiskOperation.READ] == [
        (DiskOperation.TRUNCATE, "idx"),
        (DiskOperation.SYNC, "idx"),
        (DiskOperation.TRUNCATE, "seg"),
        (DiskOperation.SYNC, "seg"),
    ]


def test_truncate_refuses_to_cut_at_a_place_it_cannot_trust() -> None:
    disk, segment = make_segment()
    segment.write(batch(0, 10))
    segment.write_index()
    disk.damage(IDX, 128 + 8 * 5, (128).to_bytes(8, "big"))
    before = disk.content(SEG)
    with pytest.raises(CorruptionError):
        segment.truncate(t(4))
    assert disk.content(SEG) == before


@pytest.mark.parametrize("operation", [DiskOperation.WRITE, DiskOperation.SYNC])
def test_append_after_a_failed_write_or_sync_is_refused(operation: DiskOperation) -> None:
    disk, segment = make_segment()
    segment.write(batch(0, 5))
    segment.sync()
    disk.fault = fail_nth(operation, 1, errno.ENOSPC)

    def write_and_sync() -> None:
        segment.write(batch(5, 5))
        segment.write(batch(10, 5))
        segment.sync()

    with pytest.raises(SegmentFailedError, match=operation.value):
        write_and_sync()
    actions: list[Callable[[], object]] = [
        lambda: segment.write(batch(5, 5)), segment.sync, segment.write_index,
        lambda: segment.truncate(t(2)),
    ]  # fmt: skip
    for action in actions:
        with pytest.raises(SegmentFailedError, match="closed by an earlier failure"):
            action()
    assert segment.next_transaction_id == 5
    assert data_of(segment, 0, 100) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("number", [1, 2])
def test_failed_index_write_ends_writing_but_not_reading(number: int) -> None:
    disk, segment = make_segment()
    segment.write(batch(0, 5))
    disk.fault = fail_nth((DiskOperation.WRITE, DiskOperation.SYNC)[number - 1], number)
    with pytest.raises(SegmentFailedError, match="of the index failed"):
        segment.write_index()
    assert has_failed(segment)
    assert data_of(segment, 0, 100) == [0, 1, 2, 3, 4]
    with pytest.raises(SegmentFailedError, match="closed by an earlier failure"):
        segment.write(batch(5, 1))


def test_index_write_that_fails_between_two_multiples_leaves_the_records_readable() -> None:
    disk, segment = make_segment()
    count = INDEX_SYNC_RECORDS + 10
    segment.write(batch(0, count, size=0))
    disk.fault = fail_nth(DiskOperation.WRITE, 2)
    with pytest.raises(SegmentFailedError, match="write of the index"):
        segment.sync()
    assert segment.next_transaction_id == count
    first = INDEX_SYNC_RECORDS - 5
    assert segment.read(t(first), count_max=100, bytes_max=10**6) == batch(first, 15, size=0)


def test_space_is_reserved_ahead_of_both_files_and_given_back() -> None:
    disk, segment = make_segment()
    disk.capacity_bytes = 10**9
    free = disk.free_bytes
    segment.write(batch(0, 10))
    taken = free - disk.free_bytes
    assert taken == PREALLOCATED_BYTES_MIN + INDEX_PREALLOCATED_BYTES + segment.size - 128 + 80
    disk.counts.clear()
    segment.write(batch(10, 10))
    segment.sync()
    assert disk.counts[DiskOperation.PREALLOCATE] == 0
    assert len(disk.content(SEG)) == segment.size
    segment.write_index()
    segment.give_back()
    assert free - disk.free_bytes == segment.size - 128 + 8 * 20
    assert len(read_independently(disk.content(SEG), disk.content(IDX))) == 20


def test_nothing_is_reserved_beyond_the_threshold() -> None:
    disk, segment = make_segment()
    disk.capacity_bytes = 10**9
    free = disk.free_bytes
    segment.write(batch(0, 10, size=60), threshold=1500)
    segment.write(batch(10, 10, size=60), threshold=1500)
    taken = free - disk.free_bytes
    assert taken == 2000 + INDEX_PREALLOCATED_BYTES + 80


@pytest.mark.parametrize("number", [1, 2])
def test_full_disk_is_a_clean_refusal_that_leaves_the_writer_open(number: int) -> None:
    """SN-28: for want of space in either file."""
    disk, segment = make_segment()
    segment.write(batch(0, 5))
    segment.sync()
    before = disk.content(SEG), disk.content(IDX)
    segment.give_back()

    def full(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.PREALLOCATE and path == (SEG, IDX)[number - 1]:
            raise OSError(errno.ENOSPC, "no space", path)

    disk.fault = full
    for _ in range(3):
        with pytest.raises(
            UnavailableError, match=r"no space for 5 records .* nothing was written"
        ):
            segment.write(batch(5, 5))
    assert (disk.content(SEG), disk.content(IDX)) == before
    disk.fault = None
    segment.write(batch(5, 5))
    segment.sync()
    assert data_of(segment, 0, 100) == list(range(10))


def test_last_free_bytes_are_used_though_none_can_be_reserved_ahead() -> None:
    disk, segment = make_segment()
    disk.capacity_bytes = 2 * 128 + len(batch(0, 5).block) + 5 * 8
    segment.write(batch(0, 5))
    segment.sync()
    with pytest.raises(UnavailableError):
        segment.write(batch(5, 1))
    assert data_of(segment, 0, 100) == [0, 1, 2, 3, 4]


def test_other_failures_of_a_reservation_end_writing() -> None:
    disk, segment = make_segment()
    disk.fault = fail_nth(DiskOperation.PREALLOCATE, 1, errno.EIO)
    with pytest.raises(SegmentFailedError, match="reservation of space"):
        segment.write(batch(0, 1))
    assert has_failed(segment)


def test_segment_that_finds_no_space_is_not_there() -> None:
    for operation, number in (
        (DiskOperation.OPEN, 1),
        (DiskOperation.WRITE, 2),
        (DiskOperation.SYNC, 2),
    ):
        disk = fresh_disk()
        disk.make_directory(f"{DIRECTORY}/0")
        disk.fault = fail_nth(operation, number, errno.ENOSPC)
        with pytest.raises(UnavailableError, match="no space for a new segment"):
            create_segment(home(disk), t(0), 5)
        assert not disk.exists(SEG)
        disk.fault = None
        make_segment(disk)


@pytest.mark.parametrize("operation", [DiskOperation.TRUNCATE, DiskOperation.SYNC])
@pytest.mark.parametrize("number", [1, 2])
def test_failed_truncation_ends_writing(operation: DiskOperation, number: int) -> None:
    disk, segment = make_segment()
    segment.write(batch(0, 5))
    segment.write_index()
    disk.fault = fail_nth(operation, number)
    with pytest.raises(SegmentFailedError, match="truncation to transaction 2"):
        segment.truncate(t(2))
    assert segment.failed


def test_orphan_index_file_is_taken_over() -> None:
    """Hazard D2: a crash between the two creations."""
    disk = fresh_disk()
    disk.make_directory(f"{DIRECTORY}/0")
    disk.open(IDX, create=True).write_at(0, b"left over" * 100)
    _, segment = make_segment(disk)
    segment.write(batch(0, 3))
    segment.write_index()
    assert len(read_independently(disk.content(SEG), disk.content(IDX))) == 3


def test_creation_never_overwrites_a_data_file() -> None:
    disk, segment = make_segment()
    segment.write(batch(0, 3))
    with pytest.raises(SegmentFailedError, match="creation failed"):
        make_segment(disk)
    assert len(disk.content(SEG)) > 128


def test_created_files_and_their_names_are_durable() -> None:
    """SD-26."""
    disk, _ = make_segment()
    order = []
    disk.fault = lambda operation, path: order.append((operation, path.rpartition("/")[2][-3:]))
    make_segment(disk, 29)
    assert order == [
        (DiskOperation.OPEN, "idx"),
        (DiskOperation.WRITE, "idx"),
        (DiskOperation.SYNC, "idx"),
        (DiskOperation.OPEN, "seg"),
        (DiskOperation.WRITE, "seg"),
        (DiskOperation.SYNC, "seg"),
        (DiskOperation.SYNC_DIRECTORY, "0"),
    ]
    assert disk.list_directory(f"{DIRECTORY}/0")[-1] == "0000000000000000029.seg"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"version": 99}, "format version 99; this release knows 0"),
        ({"key": OTHER_KEY}, f"cluster key {OTHER_KEY}; expected {KEY}"),
        ({"number": 3}, "partition 3 from transaction 7; expected partition 0 from 7"),
        ({"first": 8}, "partition 0 from transaction 8; expected partition 0 from 7"),
        ({"length": 127}, "header of 127 bytes; expected 128"),
    ],
)
def test_header_of_another_segment_is_refused(other: dict[str, object], message: str) -> None:
    """SD-10, SD-25."""
    disk = fresh_disk()
    source = SegmentHome(disk, DIRECTORY, KEY, PartitionId(0))
    key, number, first = other.get("key", KEY), other.get("number", 0), other.get("first", 7)
    header = SegmentHome(disk, DIRECTORY, key, number).header(first, 5)  # type: ignore[arg-type]
    header = int(str(other.get("version", 0))).to_bytes(4, "big") + header[4:]
    with pytest.raises(CorruptionError, match=message):
        source.check_header(header[: int(str(other.get("length", 128)))], t(7), "path")
    assert source.check_header(source.header(t(7), 5), t(7), "path") == 5
