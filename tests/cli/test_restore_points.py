"""Points as options, and what they must not be."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.clusters import run_tool
from tests.restore.memory_archive import Cut, MemoryArchive, make_archive
from tests.restore.stored_archive import NOW, store
from waltz.cli.restore_points import parse_marks, parse_moment
from waltz.types import NOTHING, PartitionId, TransactionId


def t(*numbers: int) -> dict[PartitionId, TransactionId]:
    return {PartitionId(p): TransactionId(number) for p, number in enumerate(numbers)}


def test_marks_are_written_one_per_partition() -> None:
    assert parse_marks("0=100,1=-1") == t(100, -1)
    assert parse_marks(" 1 = 2 , 0=0") == {PartitionId(1): 2, PartitionId(0): 0}
    for wrong in ("", "0", "0=", "a=1", "0=1,0=2", "0=-2", "0=1,", "-1=3", "0=--1", "0=1.5"):
        with pytest.raises(click.BadParameter, match="is no mark"):
            parse_marks(wrong)


def test_a_time_says_how_far_it_is_from_utc() -> None:
    assert parse_moment("1970-01-01T00:00:01.5Z") == 1500
    assert parse_moment("1970-01-01T02:00:00+02:00") == 0
    with pytest.raises(click.BadParameter, match="does not say in which zone"):
        parse_moment("2026-11-23T10:00")
    with pytest.raises(click.BadParameter, match="is no time"):
        parse_moment("yesterday")


@pytest.fixture(scope="module")
def memory() -> MemoryArchive:
    found = make_archive([700, 20])
    found.cuts = {"month": Cut(t(650, 9), 1000)}
    found.times = {
        PartitionId(0): [(TransactionId(100), 1000), (TransactionId(600), 2000)],
        PartitionId(1): [(TransactionId(19), 1500)],
    }
    return found


@pytest.fixture(scope="module")
def url(memory: MemoryArchive, tmp_path_factory: pytest.TempPathFactory) -> str:
    return store(memory, tmp_path_factory.mktemp("archive"), now=10_000)


@pytest.mark.parametrize(
    ("options", "lasts", "unsure"),
    [
        ((), [699, 19], [699, 19]),
        (("--latest",), [699, 19], [699, 19]),
        (("--cut", "month"), [650, 9], [650, 9]),
        (("--marks", "0=3,1=-1"), [3, -1], [3, -1]),
        (("--at", "1970-01-01T00:00:01.600Z"), [100, 19], [600, 19]),
        (("--at", "1970-01-01T00:00:01Z"), [100, -1], [600, 19]),
        (("--at", "2027-01-01T00:00Z"), [600, 19], [699, 19]),
    ],
)
def test_each_point_names_exact_transactions_and_what_is_unsure(
    url: str, options: tuple[str, ...], lasts: list[int], unsure: list[int]
) -> None:
    found = run_tool("restore", "plan", url, *options, "--json").json
    assert [each["last_transaction_id"] for each in found["partitions"]] == lasts
    assert [each["unsure_to_transaction_id"] for each in found["partitions"]] == unsure
    assert [each["left_out"] for each in found["partitions"]] == [
        699 - lasts[0], 19 - lasts[1],
    ]  # fmt: skip
    assert found["point"] == (" ".join(options) or "--latest")


def test_the_bytes_are_exact_where_an_object_of_the_archive_ends(
    url: str, memory: MemoryArchive
) -> None:
    for options, last in ((("--marks", "0=299,1=-1"), 299), (("--marks", "0=699,1=-1"), 699)):
        found = run_tool("restore", "plan", url, *options, "--json").json
        assert found["partitions"][0]["bytes"] == len(memory.log(0, last))
        assert found["partitions"][1]["bytes"] == 0


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (("--latest", "--cut", "month"), 2, "exclude each other"),
        (("--cut", "year"), 1, "no cut named 'year'; it has: month"),
        (("--marks", "0=700,1=0"), 1, "archived up to 699"),
        (("--marks", "0=7"), 1, "lack partition 1"),
        (("--marks", "zero"), 2, "is no mark"),
        (("--at", "now"), 2, "is no time"),
    ],
)
def test_a_point_that_does_not_exist_is_refused(
    url: str, options: tuple[str, ...], code: int, error: str
) -> None:
    said = run_tool("restore", "plan", url, *options)
    assert (said.code, error in said.err) == (code, True), said.err


def test_a_partition_of_which_nothing_is_archived_is_not_taken_for_an_empty_one(
    tmp_path: Path,
) -> None:
    url = store(make_archive([5, 0, 0]), tmp_path)
    said = run_tool("restore", "plan", url)
    assert said.code == 1
    assert "nothing is archived of partition 1, 2, and no archiver has noted that" in said.err
    assert run_tool("restore", "plan", url, "--allow-empty").code == 0


def test_a_partition_that_an_archiver_has_found_empty_is_restored_without_leave(
    tmp_path: Path,
) -> None:
    memory = make_archive([5, 0, 0])
    for each in (1, 2):
        memory.times[PartitionId(each)] = [(NOTHING, NOW)]
    assert run_tool("restore", "plan", store(memory, tmp_path)).code == 0
