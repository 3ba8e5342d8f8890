"""An archive as a Delta table: what other programs see of it, and may do to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import dataset

from tests.buckets import bucket_url, object_store
from tests.spark.archive_formats import directory_of
from tests.spark.duck import opened_duck
from tests.spark.test_any_archive import HISTORIES, KEY, logged, rows, span, written
from waltz.errors import (
    ArchiveUnreachableError,
    ConfigurationError,
    CorruptionError,
)
from waltz.spark import delta_archive as delta_archive_module
from waltz.spark.archive_files import SCHEMA
from waltz.spark.archive_location import DeltaLocation
from waltz.spark.delta_archive import DeltaArchive
from waltz.spark.parquet_archive import ORPHAN_SECONDS_MIN, Contents
from waltz.spark.pipelines.archiving import tidy_archive

__all__ = ["bucket_url", "object_store"]


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


def test_a_table_that_another_run_has_just_made_and_filled_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = DeltaLocation(str(tmp_path / "archive"))
    found, truth = iter([False]), delta_archive(location)
    opened = delta_archive_module._table

    def late(asked: DeltaLocation) -> DeltaTable:
        if not next(found, True):
            raise TableNotFoundError("it was not there yet")
        return opened(asked)

    monkeypatch.setattr(delta_archive_module, "_table", late)
    assert DeltaArchive.create(location, KEY).contents() == truth


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
    for hours in (0, 1):
        assert tidy_archive(location, hours, delete=True).files == (), "a run may be at work"
    assert (directory_of(location) / left.path).exists()
    old = changed - ORPHAN_SECONDS_MIN - 60
    os.utime(directory_of(location) / left.path, (old, old))
    assert tidy_archive(location, 48, delete=True).files == ()
    kept = tidy_archive(location, 0, delete=False)
    assert (kept.files, kept.byte_count) == ((left.path,), left.byte_count)
    assert archive.sweep(contents, now=changed + ORPHAN_SECONDS_MIN + 1) == [left.path]
    assert not (directory_of(location) / left.path).exists()
    with pytest.raises(ConfigurationError, match="only Delta tables are tidied"):
        tidy_archive(tmp_path, 1, delete=False)


def test_a_delta_table_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "table"), SCHEMA, description="sales")
    with pytest.raises(ConfigurationError, match="with the description 'sales'; this release"):
        DeltaArchive.create(DeltaLocation(str(tmp_path / "table")), KEY)


def test_a_bucket_that_does_not_answer_is_named(bucket_url: str) -> None:
    location = DeltaLocation(f"{bucket_url.replace('bucket-', 'none-')}/archive")
    with pytest.raises(ArchiveUnreachableError, match="look at the credentials in the environment"):
        DeltaArchive.create(location, KEY)
