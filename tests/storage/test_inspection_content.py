"""Statistics and digests (TL-71, SD-23)."""

from __future__ import annotations

from hashlib import sha256

import pytest

from tests.storage.independent_reader import Files, parse_directory
from tests.storage.inspected import (
    ROOT,
    cut,
    disk_of,
    flipped,
    our_files,
    segment_name,
    without,
)
from waltz.storage.inspection.content import (
    Digests,
    Statistics,
    digests,
    partition_parts,
    statistics,
    target_partitions,
)
from waltz.storage.inspection.survey import find_target, list_partition
from waltz.storage.inspection.walk import Run
from waltz.types import NOTHING, TransactionId

FILES = our_files((5, 7, 4), (3,), mark=2)


def ignore(count: int) -> None:
    """Nobody watches."""


def statistics_of(files: Files, partition: int = 0) -> Statistics:
    disk = disk_of(files)
    found = list_partition(disk, f"{ROOT}/{partition}")
    return statistics((part for _, part in partition_parts(disk, found)), ignore)


def digests_of(files: Files, *lasts: int) -> Digests:
    disk = disk_of(files)
    wanted = [TransactionId(last) for last in lasts]
    return digests(disk, list_partition(disk, f"{ROOT}/0"), lasts=wanted, progress=ignore)


def expected_digest(count: int) -> str:
    records = parse_directory(FILES).records(0)[:count]
    return sha256(b"".join(record.to_bytes() for record in records)).hexdigest()


def test_sizes_are_told_of_all_segments() -> None:
    """TL-71: rows, max, min, average, median."""
    sizes = sorted(len(record.data) for record in parse_directory(FILES).records(0))
    found = statistics_of(FILES)
    assert (found.rows, found.gaps) == (16, 0)
    assert (found.data_bytes_min, found.data_bytes_max) == (sizes[0], sizes[-1])
    assert found.data_bytes_average == sum(sizes) / 16
    assert found.data_bytes_median == (sizes[7] + sizes[8]) / 2
    assert (found.data_bytes, found.total_bytes) == (sum(sizes), sum(sizes) + 16 * 40)


def test_an_empty_log_has_no_sizes() -> None:
    found = statistics_of(our_files((0,)))
    assert found == Statistics(0, 0, 0, None, None, None, None, 0)


def test_what_does_not_check_out_is_left_out_and_counted() -> None:
    found = statistics_of(flipped(FILES, segment_name(0, 5), 128 + 40))
    assert (found.rows, found.gaps) == (15, 1)


def test_a_digest_is_that_of_the_records_as_they_lie() -> None:
    found = digests_of(FILES, NOTHING, 0, 4, 5, 15, 16)
    assert found.last_transaction_id == 15
    assert found.sha256 == expected_digest(16)
    assert found.by_last == {last: expected_digest(last + 1) for last in (NOTHING, 0, 4, 5, 15)}
    assert found.reason is None


def test_replicas_with_other_segments_have_one_digest() -> None:
    """SD-23."""
    assert digests_of(our_files((16,), (3,))).sha256 == expected_digest(16)
    assert digests_of(our_files((16,), (3,), size=9)).sha256 != expected_digest(16)


@pytest.mark.parametrize(
    ("files", "last", "reason"),
    [
        (flipped(FILES, segment_name(0, 5), 128 + 40), 4, "transaction 5: CRC-32"),
        (cut(FILES, segment_name(0, 12), 150), 11, "transaction 12: 22 bytes"),
        (
            without(FILES, segment_name(0, 5), segment_name(0, 5, ".idx")),
            4,
            "transaction 5 is missing",
        ),
    ],
)
def test_a_digest_ends_where_the_log_does(files: dict[str, bytes], last: int, reason: str) -> None:
    found = digests_of(files, 2, 15)
    assert found.last_transaction_id == last
    assert found.sha256 == expected_digest(last + 1)
    assert list(found.by_last) == [2]
    assert found.reason is not None
    assert found.reason.startswith(reason)


def test_a_path_tells_which_partitions_are_meant() -> None:
    disk = disk_of(FILES)

    def firsts(path: str) -> list[list[int]]:
        found = target_partitions(disk, find_target(disk, path))
        return [[segment.first for segment in files.segments] for files in found]

    assert firsts(ROOT) == [[0, 5, 12], [0]]
    assert firsts(f"{ROOT}/0") == [[0, 5, 12]]
    assert firsts(f"{ROOT}/{segment_name(0, 5)}") == [[5]]


def test_segments_before_the_start_are_not_read() -> None:
    disk = disk_of(FILES)
    parts = list(partition_parts(disk, list_partition(disk, f"{ROOT}/0"), TransactionId(5)))
    assert [first for first, _ in parts] == [5, 12]
    assert all(isinstance(part, Run) for _, part in parts)


def test_a_missing_data_file_has_no_parts() -> None:
    disk = disk_of(without(FILES, segment_name(0, 5)))
    parts = list(partition_parts(disk, list_partition(disk, f"{ROOT}/0")))
    assert [first for first, _ in parts] == [0, 12]
