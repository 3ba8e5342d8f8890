"""The archive pipeline with Spark on a real cluster."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import waltz
from tests.spark.archive_formats import KINDS, Kind, located, renamed_digest, stored
from tests.spark.listed_log import ListedLog
from tests.spark.overtaken import OvertakenAccess
from waltz.errors import ConfigurationError, NotFoundError, VersionConflictError
from waltz.spark.any_archive import create_archive, open_archive, read_file
from waltz.spark.archive_location import ArchiveLocation
from waltz.spark.block_digests import Block, digested
from waltz.spark.offsets import TransactionRange
from waltz.spark.parquet_archive import Archive, ArchivedFile
from waltz.spark.pipelines.archiving import (
    ArchiveDifference,
    ArchivePlace,
    add_to_archive,
    archive_lag,
    rebuild_archive,
    verify_archive,
)
from waltz.spark.pipelines.watch import BatchSeen, Beginning
from waltz.spark.progress import NextIds
from waltz.spark.tasks import LogAccess
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]


def append(cluster: str, count: int) -> None:
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for number in range(count):
            client.append(number % 2, b"%d" % number, header=number)


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_grows_with_the_log_and_is_proven_equal_to_it(
    spark: SparkSession, cluster: str, tmp_path: Path, kind: Kind
) -> None:
    access, directory = LogAccess(cluster), located(kind, tmp_path / "archive")
    append(cluster, 40)
    first = add_to_archive(spark, access, directory, tasks_min=4)
    with waltz.open_reader(cluster) as log:
        total = sum(log.high_water_mark(each) + 1 for each in range(log.partition_count))
    assert first.transactions == total
    assert first.files >= 4
    again = add_to_archive(spark, access, directory)
    assert (again.transactions, again.contents) == (0, first.contents)
    append(cluster, 10)
    more = add_to_archive(spark, access, directory)
    assert (more.transactions, more.contents.commits) == (10, 2)
    report = verify_archive(spark, access, directory)
    assert (report.transactions, report.differences) == (total + 10, ())


def test_what_another_run_archives_after_the_log_was_asked_is_not_lost_data(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access = LogAccess(cluster)
    add_to_archive(spark, access, tmp_path)

    def another_run() -> None:
        append(cluster, 4)
        add_to_archive(spark, access, tmp_path)

    def overtaken() -> OvertakenAccess:
        return OvertakenAccess(cluster, meanwhile=[another_run])

    assert add_to_archive(spark, overtaken(), tmp_path).transactions == 0
    assert all(each.taken_in == each.logged for each in archive_lag(overtaken(), tmp_path))


def test_the_first_transaction_that_differs_is_named(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access = LogAccess(cluster)
    append(cluster, 10)
    report = add_to_archive(spark, access, tmp_path, partitions=[PartitionId(1)])
    (file,) = report.contents.files
    wanted = file.range
    table = pa.Table.from_batches(read_file(tmp_path, file, wanted))
    headers = table.column("header").to_pylist()
    headers[-2] += 1
    column = table.schema.get_field_index("header")
    forged = table.set_column(column, table.schema.field(column), pa.array(headers, pa.int32()))
    pq.write_table(forged, tmp_path / file.path)
    (difference,) = verify_archive(spark, access, tmp_path).differences
    changed = wanted.end - 2
    assert difference.to_json() == {
        "partition": 1,
        "transaction": changed,
        "columns": ["header"],
        "file": file.path,
        "text": f"WALTZ-2008 partition 1, transaction {changed}: header: the log equals what was"
        f" archived, {file.path} was changed since",
    }
    # A forger who knows the manifests forges them, too; the log is still there to be compared.
    again = tmp_path / "again"
    shutil.copytree(tmp_path, again)
    manifest = again / "manifests" / f"{0:020d}.json"
    (forged_block,) = digested(wanted, forged.to_batches())
    manifest.write_text(manifest.read_text().replace(file.blocks[0].digest, forged_block.digest))
    assert Archive.open(again).contents().files[0].blocks == (forged_block,)
    (difference,) = verify_archive(spark, access, again).differences
    assert (difference.transaction_id, difference.columns) == (changed, ("header",))
    assert f"{file.path} equals what was archived, the log does not" in str(difference)


ARCHIVED = [b"%d" % number for number in range(9)]


def archive_all(location: ArchiveLocation, logged: ListedLog) -> None:
    """Make an archive of a whole log of one partition, in one file."""
    access = LogAccess("127.0.0.1:7100", open_reader=logged.open)
    whole = TransactionRange(PartitionId(0), TransactionId(0), TransactionId(len(ARCHIVED)))
    archive = create_archive(location, logged.cluster_key)
    place = ArchivePlace(access, location, logged.cluster_key)
    archive.commit(archive.contents(), place.archive(whole))


def compared(location: ArchiveLocation, logged: ListedLog) -> ArchiveDifference | None:
    """Compare the file of an archive with a log, as a task does."""
    access = LogAccess("127.0.0.1:7100", open_reader=logged.open)
    (file,) = open_archive(location).contents().files
    return ArchivePlace(access, location, logged.cluster_key).compare(file)


def other_column(name: str, number: int) -> Any:
    """Return a log with another value in one place."""
    other = ListedLog(ARCHIVED)
    read = other.read

    def changed(*arguments: Any, **options: Any) -> Any:
        for columns in read(*arguments, **options):
            place = number - columns.first_transaction_id
            if not 0 <= place < len(columns.headers):
                yield columns
            elif name == "header":
                headers = columns.headers.copy()
                headers[place] += 1
                yield replace(columns, headers=headers)
            elif name == "request_id":
                found = bytearray(columns.request_ids)
                found[16 * place] ^= 1
                yield replace(columns, request_ids=bytes(found))
            else:
                data = [bytes(each) for each in columns.data]
                data[place] += b"!"
                yield replace(columns, data=data)

    other.read = changed  # type: ignore[method-assign]
    return other


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["request_id", "header", "data"])
def test_a_change_is_named_on_whichever_side_it_is(tmp_path: Path, name: str, kind: Kind) -> None:
    """F-4."""
    location, other = located(kind, tmp_path / "archive"), located(kind, tmp_path / "other")
    archive_all(location, ListedLog(ARCHIVED))
    assert compared(location, ListedLog(ARCHIVED)) is None
    difference = compared(location, other_column(name, 5))
    assert difference is not None
    assert (difference.transaction_id, difference.columns) == (5, (name,))
    assert "equals what was archived, the log does not" in difference.detail
    # The other way round: a file of the changed log is put in the place of the archive's.
    archive_all(other, other_column(name, 5))
    stored(other).replace(stored(location))
    difference = compared(location, ListedLog(ARCHIVED))
    assert difference is not None
    assert (difference.transaction_id, difference.columns) == (5, (name,))
    assert "the log equals what was archived" in difference.detail


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        # Of a Delta table the partition is no column of the file.
        ("parquet", "partition", 3),
        *(
            (kind, *wrong)
            for kind in KINDS
            for wrong in [("transaction_id", 77), ("request_id", b"short"), ("data", None)]
        ),
    ],
)
def test_what_has_no_digest_is_named_too(
    tmp_path: Path, column: str, value: Any, kind: Kind
) -> None:
    location = located(kind, tmp_path / "archive")
    archive_all(location, ListedLog(ARCHIVED))
    path = stored(location)
    table = pq.read_table(path, partitioning=None)
    values = table.column(column).to_pylist()
    values[5] = value
    index = table.schema.get_field_index(column)
    field = table.schema.field(index).with_nullable(True)
    pq.write_table(table.set_column(index, field, pa.array(values, field.type)), path)
    difference = compared(location, ListedLog(ARCHIVED))
    assert difference is not None
    assert (difference.transaction_id, difference.columns) == (5, (column,))


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_that_was_changed_is_named_and_a_file_that_is_gone(
    tmp_path: Path, kind: Kind
) -> None:
    location = located(kind, tmp_path / "archive")
    archive_all(location, ListedLog(ARCHIVED))
    renamed_digest(location)
    difference = compared(location, ListedLog(ARCHIVED))
    assert difference is not None
    assert (difference.transaction_id, difference.columns) == (0, ())
    assert "their digest in the manifest is another for transactions 0 to 8" in str(difference)
    path = stored(location)
    path.unlink()
    difference = compared(location, ListedLog(ARCHIVED))
    assert difference is not None
    assert "WALTZ-2006" in str(difference)
    assert path.name in str(difference)
    assert "cannot be read" in str(difference)


@pytest.mark.parametrize(
    ("old", "new"), [("parquet", "parquet"), ("delta", "delta"), ("parquet", "delta")]
)
def test_a_rebuilt_archive_takes_the_place_of_the_old_one(
    spark: SparkSession, cluster: str, tmp_path: Path, old: Kind, new: Kind
) -> None:
    access, directory = LogAccess(cluster), located(new, tmp_path / "archive")
    append(cluster, 4)
    for _ in range(2):
        before = add_to_archive(spark, access, located(old, tmp_path / "archive"))
        append(cluster, 4)
    if old != new:
        with pytest.raises(ConfigurationError, match="rebuild` converts it, and target: /"):
            add_to_archive(spark, access, directory)
    # As if a rebuild had been killed after it moved the old one away.
    (tmp_path / "archive").rename(tmp_path / ".archive.replaced")
    report = rebuild_archive(spark, access, directory)
    assert report.contents.commits == 1
    assert report.transactions == sum(before.contents.next_ids().values()) + 4
    assert {each.name for each in tmp_path.iterdir()} == {"archive"}
    lags = archive_lag(access, directory)
    assert all(each.taken_in == each.logged for each in lags)
    assert verify_archive(spark, access, directory).differences == ()
    if old != new:
        with pytest.raises(ConfigurationError, match="holds a Delta table: write delta:"):
            add_to_archive(spark, access, tmp_path / "archive")


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_rebuilds_at_once_one_is_refused_and_takes_nothing_from_the_other(
    spark: SparkSession, cluster: str, tmp_path: Path, kind: Kind
) -> None:
    access, location = LogAccess(cluster), located(kind, tmp_path / "archive")
    append(cluster, 4)
    before = add_to_archive(spark, access, location).contents

    class Other:
        """A rebuild that begins while this one is at work."""

        def log_has(self, ends: NextIds) -> None: ...

        def took_in(self, batch: BatchSeen) -> None: ...

        def begins(self, beginning: Beginning) -> None:
            with pytest.raises(VersionConflictError, match=r"^WALTZ-2007 another run rebuilds /"):
                rebuild_archive(spark, access, location)

    rebuild_archive(spark, access, location, watch=Other())
    assert open_archive(location).contents().next_ids() == before.next_ids()
    assert verify_archive(spark, access, location).differences == ()
    rebuild_archive(spark, access, location)
    assert {each.name for each in tmp_path.iterdir()} == {"archive"}


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_longer_than_its_log_is_an_alarm(
    spark: SparkSession, cluster: str, tmp_path: Path, kind: Kind
) -> None:
    access, location = LogAccess(cluster), located(kind, tmp_path / "archive")
    append(cluster, 4)
    report = add_to_archive(spark, access, location)
    end = report.contents.next_ids()[PartitionId(0)]
    beyond = TransactionRange(PartitionId(0), end, TransactionId(10**6))
    path = f"partition=0/{end:020d}-{10**6:020d}-{'ab' * 32}-01234567.parquet"
    forged = ArchivedFile(path, beyond, 1, (Block(beyond, "ab" * 32),))
    open_archive(location).commit(report.contents, [forged])
    with pytest.raises(NotFoundError, match=r"^WALTZ-2001 partition 0 is archived to .* lost data"):
        add_to_archive(spark, access, location)
