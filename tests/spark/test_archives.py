"""Archives of both formats, and in a bucket: one history that is the log, whoever dies or loses."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from deltalake import CommitProperties, DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import dataset

from tests.buckets import bucket_url, object_store
from tests.spark.archive_formats import KINDS, Kind, directory_of, located
from tests.spark.duck import opened_duck
from tests.spark.test_schema import columns
from waltz.errors import (
    ArchiveUnreachableError,
    ConfigurationError,
    CorruptionError,
    VersionConflictError,
)
from waltz.spark.archive_files import SCHEMA
from waltz.spark.archive_location import ArchiveLocation, DeltaLocation
from waltz.spark.archives import create_archive, open_archive, read_file, write_files
from waltz.spark.block_digests import digested
from waltz.spark.delta_archive import DeltaArchive
from waltz.spark.offsets import TransactionRange
from waltz.spark.parquet_archive import ORPHAN_SECONDS_MIN, ArchivedFile, Contents
from waltz.spark.pipelines.archiving import tidy_archive
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
    for partition_id, end in truth.next_ids().items():
        for wanted in (span(partition_id, 0, end), span(partition_id, end // 3, end // 2 + 1)):
            read = [
                row
                for file, part in truth.within(wanted)
                for row in rows(read_file(location, file, part))
            ]
            assert read == rows([logged(wanted)])
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


def delta_archive(location: DeltaLocation) -> Contents:
    """Make an archive of two commits and two partitions."""
    archive = DeltaArchive.create(location, KEY)
    first = archive.commit(archive.contents(), written(location, Contents(0, ()), [(0, 9), (1, 5)]))
    return archive.commit(first, written(location, first, [(0, 20)]))


def test_other_programs_read_the_rows_and_leave_files_out(tmp_path: Path) -> None:
    location = DeltaLocation(str(tmp_path / "archive"))
    delta_archive(location)
    truth = [tuple(row.values()) for row in rows([logged(span(0, 0, 29)), logged(span(1, 0, 5))])]
    with opened_duck() as duck:
        assert duck.rows(tmp_path / "archive", SCHEMA.names) == sorted(truth, key=repr)
        late = duck.rows(tmp_path / "archive", SCHEMA.names, "transaction_id >= 9")
        assert late == sorted((row for row in truth if row[1] >= 9), key=repr)
    table = DeltaTable(location.root)
    found = table.to_pyarrow_table(columns=SCHEMA.names).to_pylist()
    assert sorted(map(repr, found)) == sorted(
        map(repr, rows([logged(span(0, 0, 29)), logged(span(1, 0, 5))]))
    )
    fragments = table.to_pyarrow_dataset().get_fragments(
        filter=dataset.field("transaction_id") >= 9
    )
    assert len(list(fragments)) == 1
    assert table.transaction_version("waltz-mark-0") == 29


def test_all_that_an_archive_says_outlives_checkpoints_and_removed_entries_of_the_log(
    tmp_path: Path,
) -> None:
    location = DeltaLocation(str(tmp_path / "archive"))
    archive = DeltaArchive.create(location, KEY)
    contents = archive.contents()
    for number in range(3):
        files = written(location, contents, [(number % 2, 4)])
        contents = archive.commit(contents, files, HISTORIES[2])
    table = DeltaTable(location.root)
    table.create_checkpoint()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    DeltaTable(location.root).create_checkpoint()
    log = tmp_path / "archive" / "_delta_log"
    entries = list(log.glob("*.json"))
    newest = DeltaTable(location.root).version()
    for each in entries:
        if int(each.stem) < newest:
            each.unlink()
    assert DeltaArchive.open(location).cluster_key == KEY
    assert DeltaArchive.open(location).contents() == contents
    more = DeltaArchive.open(location).commit(contents, written(location, contents, [(1, 3)]))
    assert DeltaArchive.open(location).contents() == more


def test_what_another_program_did_to_the_table_is_refused_by_name(tmp_path: Path) -> None:
    location = DeltaLocation(str(tmp_path / "archive"))
    delta_archive(location)
    table = DeltaTable(location.root)
    with pytest.raises(Exception, match=r"(?i)append"):
        table.delete("transaction_id > 3")
    assert DeltaArchive.open(location).contents().commits == 2
    table.optimize.compact()
    with pytest.raises(CorruptionError, match="which no run of this archive wrote; another pro"):
        DeltaArchive.open(location).contents()
    DeltaTable(location.root).restore(2, commit_properties=CommitProperties())
    assert DeltaArchive.open(location).contents().commits == 2


def test_files_that_no_commit_names_are_kept_for_a_day(tmp_path: Path) -> None:
    location = DeltaLocation(str(tmp_path / "archive"))
    contents = delta_archive(location)
    (left,) = written(location, contents, [(1, 3)])
    archive = DeltaArchive.open(location)
    changed = (directory_of(location) / left.path).stat().st_mtime
    assert archive.sweep(contents, now=changed + ORPHAN_SECONDS_MIN - 1) == []
    assert tidy_archive(location, 1, delete=True).files == ()
    kept = tidy_archive(location, 0, delete=False)
    assert (kept.files, kept.byte_count) == ((left.path,), left.byte_count)
    assert archive.sweep(contents, now=changed + ORPHAN_SECONDS_MIN + 1) == [left.path]
    assert not (directory_of(location) / left.path).exists()
    with pytest.raises(ConfigurationError, match="only Delta tables are tidied"):
        tidy_archive(tmp_path, 1, delete=False)


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


def test_a_delta_table_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "table"), SCHEMA, description="sales")
    with pytest.raises(ConfigurationError, match="with the description 'sales'; this release"):
        DeltaArchive.create(DeltaLocation(str(tmp_path / "table")), KEY)


def test_a_bucket_that_does_not_answer_is_named(bucket_url: str) -> None:
    location = DeltaLocation(f"{bucket_url.replace('bucket-', 'none-')}/archive")
    with pytest.raises(ArchiveUnreachableError, match="look at the credentials in the environment"):
        DeltaArchive.create(location, KEY)
