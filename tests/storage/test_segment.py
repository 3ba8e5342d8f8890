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
from waltz.errors import CorruptionError, SegmentFailedError
from waltz.limits import INDEX_CHECKPOINT_RECORDS
from waltz.record import NewRecord, pack_records
from waltz.sim.disk import Operation, SimulatedDisk, fail_nth
from waltz.storage.segment import Segment, SegmentHome, create_segment
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


def is_due(segment: Segment) -> bool:
    return segment.is_checkpoint_due


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


def test_append_is_one_write_and_one_sync() -> None:
    """SD-12."""
    disk, segment = make_segment()
    disk.counts.clear()
    segment.write(batch(0, 500))
    segment.sync()
    assert disk.counts == {Operation.WRITE: 1, Operation.SYNC: 1}
    segment.sync()
    assert disk.counts[Operation.SYNC] == 1


def test_index_is_due_once_per_thousand() -> None:
    """SD-13."""
    disk, segment = make_segment()
    written = 0
    flushes: list[int] = []
    for count in (999, 1, 500, 499, 2, 2500):
        segment.write(batch(written, count))
        assert not is_due(segment)
        segment.sync()
        written += count
        if is_due(segment):
            segment.checkpoint()
            flushes.append(written)
        assert not is_due(segment)
    assert flushes == [1000, 2001, 4501]
    assert len(disk.content(IDX)) == 128 + 8 * 4501
    records = read_independently(disk.content(SEG), disk.content(IDX))
    assert len(records) == 4501
    for seed in range(20):
        clone = disk.crash_clone(random(seed))
        assert clone.content(IDX)[: 128 + 8 * 4000] == disk.content(IDX)[: 128 + 8 * 4000]
    assert INDEX_CHECKPOINT_RECORDS == 1000


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
    assert disk.counts == {Operation.READ: 2}


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
    with pytest.raises(CorruptionError, match="4 bytes at entry 1; expected 16"):
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
    assert [step for step in order if step[0] is not Operation.READ] == [
        (Operation.TRUNCATE, "idx"),
        (Operation.SYNC, "idx"),
        (Operation.TRUNCATE, "seg"),
        (Operation.SYNC, "seg"),
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


@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.SYNC])
def test_append_after_a_failed_write_or_sync_is_refused(operation: Operation) -> None:
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
    segment.sync()
    disk.fault = fail_nth((Operation.WRITE, Operation.SYNC)[number - 1], 1)
    with pytest.raises(SegmentFailedError, match="of the index failed"):
        segment.write_index()
    assert segment.failed
    assert not segment.is_checkpoint_due
    assert data_of(segment, 0, 100) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("operation", [Operation.TRUNCATE, Operation.SYNC])
@pytest.mark.parametrize("number", [1, 2])
def test_failed_truncation_ends_writing(operation: Operation, number: int) -> None:
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
        (Operation.OPEN, "idx"),
        (Operation.WRITE, "idx"),
        (Operation.SYNC, "idx"),
        (Operation.OPEN, "seg"),
        (Operation.WRITE, "seg"),
        (Operation.SYNC, "seg"),
        (Operation.SYNC_DIRECTORY, "0"),
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
