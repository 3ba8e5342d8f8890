"""Sealed segments read as the log: all of a range, or an error."""

from __future__ import annotations

import pytest

from tests.storage.independent_reader import Files, parse_directory
from tests.storage.inspected import KEY, ROOT, disk_of, flipped, our_files, segment_name, without
from waltz.errors import ConfigurationError, CorruptionError
from waltz.storage.inspection.sealed import read_sealed, sealed_segments
from waltz.types import TransactionId

FILES = our_files((5, 7, 4), (3,), (2, 2))


def read(files: Files, number: int, first: int, end: int) -> bytes:
    disk = disk_of(files)
    key, segments = sealed_segments(disk, ROOT)
    batches = read_sealed(
        disk, segments[number], key, first=TransactionId(first), end=TransactionId(end)
    )
    return b"".join(bytes(batch.block) for batch in batches)


def expected(first: int, end: int) -> bytes:
    return b"".join(each.to_bytes() for each in parse_directory(FILES).records(0)[first:end])


def test_the_last_segment_of_a_partition_is_not_sealed() -> None:
    key, segments = sealed_segments(disk_of(FILES), ROOT)
    assert key == KEY
    assert [(each.directory, each.partition_id, each.first, each.end) for each in segments] == [
        (f"{ROOT}/0", 0, 0, 5),
        (f"{ROOT}/0", 0, 5, 12),
        (f"{ROOT}/2", 2, 0, 2),
    ]


@pytest.mark.parametrize(("first", "end"), [(5, 12), (5, 6), (7, 9), (11, 12)])
def test_a_range_is_read_whole(first: int, end: int) -> None:
    assert read(FILES, 1, first, end) == expected(first, end)


@pytest.mark.parametrize(
    ("damaged", "fault"),
    [
        (flipped(FILES, segment_name(0, 5), 200), "transaction 6: CRC-32"),
        (flipped(FILES, segment_name(0, 5), 20), "cluster key .*; expected"),
        ({**FILES, segment_name(0, 5): FILES[segment_name(2, 0)]}, "partition 2; expected 0"),
        ({**FILES, segment_name(0, 5): FILES[segment_name(0, 0)]}, "first transaction 0"),
        ({**FILES, segment_name(0, 5): FILES[segment_name(0, 5)][:-1]}, "transaction 11: a record"),
        (without(FILES, segment_name(0, 5)), "header of 0 bytes"),
    ],
)
def test_damage_is_an_error(damaged: Files, fault: str) -> None:
    with pytest.raises(CorruptionError, match=rf"/0/0000000000000000005.seg: {fault}"):
        read(damaged, 1, 5, 12)


def test_a_segment_that_ends_too_soon_is_an_error() -> None:
    gone = without(FILES, segment_name(0, 5), segment_name(0, 5, ".idx"))
    with pytest.raises(CorruptionError, match=r"ends before transaction 5; expected 11"):
        read(gone, 0, 0, 12)


def test_only_whole_storage_directories_are_taken() -> None:
    disk = disk_of(FILES)
    with pytest.raises(ConfigurationError, match="is not the whole directory of a storage node"):
        sealed_segments(disk, f"{ROOT}/0")
    with pytest.raises(ConfigurationError, match="no such file or directory"):
        sealed_segments(disk, "/elsewhere")
