"""Archives of both formats, and in a bucket, are the log, whichever writer dies or loses."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.buckets import bucket_url, object_store
from tests.clusters import ROOT
from tests.spark.archive_formats import KINDS, Kind, directory_of, located
from tests.spark.test_schema import columns
from waltz.errors import (
    ConfigurationError,
    VersionConflictError,
)
from waltz.spark.any_archive import create_archive, open_archive, read_file, write_files
from waltz.spark.archive_files import SCHEMA
from waltz.spark.archive_location import ArchiveLocation, DeltaLocation
from waltz.spark.block_digests import digested
from waltz.spark.delta_archive import DeltaArchive
from waltz.spark.offsets import TransactionRange
from waltz.spark.parquet_archive import ArchivedFile, Contents
from waltz.spark.schema import record_batch
from waltz.types import PartitionId, TransactionId

__all__ = ["bucket_url", "object_store"]

KEY = UUID(int=1)
HISTORIES = (None, UUID(int=(1 << 127) + 5), UUID(int=(1 << 128) - 1))
FUTURE = 1e12


def span(partition_id: int, first: int, end: int) -> TransactionRange:
    return TransactionRange(PartitionId(partition_id), TransactionId(first), TransactionId(end))


def logged(wanted: TransactionRange) -> Any:
    """Return what the log has: the same for a range whenever it is read."""
    numbers = range(wanted.first, wanted.end)
    data = [b"%d" % (number * 7 + wanted.partition_id) * (number % 4) for number in numbers]
    return record_batch(wanted.partition_id, columns(wanted.first, data), SCHEMA)


def rows(batches: Any) -> list[dict[str, Any]]:
    return [row for each in batches for row in each.to_pylist()]


steps = st.tuples(
    st.sampled_from(["commit", "die", "lose"]),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=3),
    st.sampled_from(HISTORIES),
)


def written(location: ArchiveLocation, contents: Contents, sizes: Any) -> list[ArchivedFile]:
    """Write the next files, as tasks do."""
    ends = dict(contents.next_ids())
    files = []
    for partition_id, count in sizes:
        first = ends.get(partition_id, 0)
        wanted = span(partition_id, first, first + count)
        files += write_files(location, wanted, [logged(wanted)])
        ends[partition_id] = wanted.end
    return files


FEW = settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("kind", KINDS)
@FEW
@given(runs=st.lists(steps, min_size=1, max_size=5))
def test_an_archive_is_the_log_whatever_dies_or_loses(
    tmp_path: Path, kind: Kind, runs: list[Any]
) -> None:
    expect_the_log(located(kind, tmp_path / str(uuid4())), runs)


@settings(FEW, max_examples=2)
@given(runs=st.lists(steps, min_size=3, max_size=3))
def test_an_archive_in_a_bucket_is_the_log_whatever_dies_or_loses(
    bucket_url: str, runs: list[Any]
) -> None:
    expect_the_log(DeltaLocation(f"{bucket_url}/{uuid4()}"), runs)


def expect_the_log(location: ArchiveLocation, runs: list[Any]) -> None:
    """Each step is a run: it commits, dies before its commit, or loses to another run."""
    truth, left = Contents(0, ()), set()
    for what, sizes, history in runs:
        archive = create_archive(location, KEY)
        before = archive.contents()
        assert before == truth
        files = written(location, before, sizes)
        if what == "lose":
            others = written(location, before, sizes[:1])
            truth = create_archive(location, KEY).commit(before, others, history)
            with pytest.raises(VersionConflictError, match=r"^WALTZ-2007 another run has added"):
                archive.commit(before, files, history)
        if what == "commit":
            truth = archive.commit(before, files, history)
        else:
            left |= {each.path for each in files}
    found = open_archive(location)
    assert found.contents() == truth
    expect_rows(location, truth)
    for file in truth.files:
        assert file.blocks == tuple(
            digested(file.range, [logged(file.range)], [each.range for each in file.blocks])
        )
    assert found.sweep(truth) == []  # a running run may have just written them
    if isinstance(found, DeltaArchive):
        assert {path for path, _ in found.unnamed(0.0, now=FUTURE)} == left
        found.remove([path for path, _ in found.unnamed(0.0, now=FUTURE)])
        assert found.unnamed(0.0, now=FUTURE) == []
    else:
        assert set(found.sweep(truth, now=FUTURE)) == left
    assert open_archive(location).contents() == truth


def expect_rows(location: ArchiveLocation, truth: Contents) -> None:
    """Read each partition, whole and in parts, and compare with the log."""
    for partition_id, end in truth.next_ids().items():
        for wanted in (span(partition_id, 0, end), span(partition_id, end // 3, end // 2 + 1)):
            read = [
                row
                for file, part in truth.within(wanted)
                for row in rows(read_file(location, file, part))
            ]
            assert read == rows([logged(wanted)])


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.long)])
def test_an_archive_is_the_log_though_processes_that_add_to_it_are_killed(
    tmp_path: Path, kind: Kind, kills: int
) -> None:
    location, random, told = located(kind, tmp_path / "archive"), Random(kills), 0
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.killed_archive", kind, str(tmp_path / "archive")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(random.randrange(4)):
            told = int(process.stdout.readline())
        time.sleep(random.uniform(0.0, 0.05))
        process.kill()
        process.communicate()
        contents = create_archive(location, KEY).contents()
        assert contents.commits >= told
        told = contents.commits
        expect_rows(location, contents)
    assert told > kills / 2, "killed before anything was committed"
    archive = open_archive(location)
    archive.sweep(archive.contents(), now=FUTURE)
    directory = directory_of(location)
    left = {str(each.relative_to(directory)) for each in directory.glob("partition=*/*")}
    assert left == {each.path for each in archive.contents().files}


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_with_something_else_is_refused(tmp_path: Path, kind: Kind) -> None:
    location = located(kind, tmp_path / "archive")
    with pytest.raises(ConfigurationError, match="holds no archive"):
        open_archive(location)
    directory_of(location).mkdir()
    (directory_of(location) / "letters").write_text("")
    with pytest.raises(ConfigurationError, match="has files but no archive"):
        create_archive(location, KEY)
    create_archive(located(kind, tmp_path / "other"), KEY)
    with pytest.raises(ConfigurationError, match=r"has the log of cluster .* not of cluster"):
        create_archive(located(kind, tmp_path / "other"), UUID(int=2))


@pytest.mark.parametrize("commits", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_adds_nothing_to_an_archive_that_has_taken_the_place_of_its_own(
    tmp_path: Path, kind: Kind, commits: int
) -> None:
    location, aside = located(kind, tmp_path / "archive"), located(kind, tmp_path / "fresh")
    archive = create_archive(location, KEY)
    contents = archive.contents()
    for _ in range(commits):
        contents = archive.commit(contents, written(location, contents, [(0, 4)]))
    added = written(location, contents, [(0, 5)])
    fresh = create_archive(aside, KEY)
    fresh.commit(fresh.contents(), written(aside, fresh.contents(), [(0, 4 * commits + 2)]))
    (tmp_path / "archive").rename(tmp_path / "old")
    (tmp_path / "fresh").rename(tmp_path / "archive")
    with pytest.raises(VersionConflictError, match=r"^WALTZ-2007 .* was replaced meanwhile"):
        archive.commit(contents, added)
    assert open_archive(location).contents().next_ids() == {0: 4 * commits + 2}
