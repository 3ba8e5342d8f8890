"""The choice of files that become one: a bucket has few files, and rows are seldom rewritten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz.spark.pipelines.file_levels import (
    FAN_INS,
    PresentFile,
    fan_in,
    level,
    merged_files,
)

counts = st.lists(st.integers(0, 100_000), max_size=40)


def present(row_counts: list[int]) -> list[PresentFile]:
    return [PresentFile(str(number), count) for number, count in enumerate(row_counts)]


def files_after(batches: list[int], bucket: int = 0) -> tuple[list[int], int]:
    """Take in batches of new keys; return the row counts of the files, and the rows written."""
    files: list[PresentFile] = []
    written = 0
    for number, rows in enumerate(batches):
        merged = merged_files(rows, files, fan_in(bucket, number))
        total = rows + sum(each.row_count for each in merged)
        written += total
        files = [each for each in files if each not in merged]
        files.append(PresentFile(str(number), total))
    return [each.row_count for each in files], written


def test_a_level_is_the_logarithm_of_rows_to_the_base_of_four() -> None:
    assert [level(each) for each in (0, 1, 3, 4, 15, 16, 63, 64, 1 << 40)] == [
        *(0, 0, 0, 1, 1, 2, 2, 3, 20)
    ]


def test_files_become_one_when_there_are_enough_up_to_its_level() -> None:
    files = present([100, 5000, 120, 110])
    assert [each.row_count for each in merged_files(100, files, 4)] == [100, 110, 120]
    assert merged_files(100, files, 5) == []
    assert merged_files(1, files, 3) == []


def test_a_file_that_has_grown_by_others_takes_in_those_of_its_new_level() -> None:
    files = present([100, 100, 100, 400, 400, 500, 5000])
    assert [each.row_count for each in merged_files(100, files, 4)] == [
        *(100, 100, 100, 400, 400, 500)
    ]


@given(counts, st.integers(0, 100_000), st.sampled_from(FAN_INS))
def test_files_that_become_part_are_the_smallest(
    row_counts: list[int], rows: int, number: int
) -> None:
    files = present(row_counts)
    merged = merged_files(rows, files, number)
    largest = max((each.row_count for each in merged), default=0)
    left = [each for each in files if each not in merged]
    assert all(each.row_count >= largest for each in left)
    near = level(rows + sum(each.row_count for each in merged))
    assert sum(level(each.row_count) <= near for each in left) < number - 1


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=300), st.integers(0, 63))
def test_a_bucket_has_few_files_per_level_and_its_rows_are_written_once_per_level(
    batches: list[int], bucket: int
) -> None:
    files, written = files_after(batches, bucket)
    assert sum(files) == sum(batches)
    levels = level(sum(batches)) + 1
    assert len(files) <= max(FAN_INS) * levels
    assert written <= 3 * levels * sum(batches)


def test_batches_of_one_size_do_not_have_all_buckets_written_anew_by_one_of_them() -> None:
    written = [
        [files_after([1000] * batch, bucket)[1] for batch in range(1, 101)] for bucket in range(64)
    ]
    per_batch = [
        sum(each[batch] - each[batch - 1] for each in written) / 64_000 for batch in range(1, 100)
    ]
    assert sum(per_batch) / 99 < 5, "a row is written some five times until there are a hundred"
    assert max(per_batch[20:]) < 12, "no batch writes a large part of the table"
