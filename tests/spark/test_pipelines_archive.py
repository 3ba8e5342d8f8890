"""The archive pipeline with Spark on a real cluster."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import waltz
from waltz.errors import NotFoundError
from waltz.spark.archive import Archive, ArchivedFile
from waltz.spark.archive_files import read_file
from waltz.spark.blocks import Block, digested
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.archive import (
    add_to_archive,
    archive_lag,
    rebuild_archive,
    verify_archive,
)
from waltz.spark.tasks import LogAccess
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]


def append(cluster: str, count: int) -> None:
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for number in range(count):
            client.append(number % 2, b"%d" % number, header=number)


def test_an_archive_grows_with_the_log_and_is_proven_equal_to_it(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access, directory = LogAccess(cluster), tmp_path / "archive"
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
    assert difference.startswith(f"WALTZ-2008 {file.path}: partition 1, transactions")
    # A forger who knows the manifests forges them, too; the log is still there to be compared.
    again = tmp_path / "again"
    shutil.copytree(tmp_path, again)
    manifest = again / "manifests" / f"{0:020d}.json"
    (forged_block,) = digested(wanted, forged.to_batches())
    manifest.write_text(manifest.read_text().replace(file.blocks[0].digest, forged_block.digest))
    assert Archive.open(again).contents().files[0].blocks == (forged_block,)
    (difference,) = verify_archive(spark, access, again).differences
    assert difference == (
        f"WALTZ-2008 partition 1, transaction {wanted.end - 2}: header in {file.path} is not what"
        " the log has"
    )


def test_a_rebuilt_archive_takes_the_place_of_the_old_one(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access, directory = LogAccess(cluster), tmp_path / "archive"
    append(cluster, 4)
    for _ in range(2):
        before = add_to_archive(spark, access, directory)
        append(cluster, 4)
    # As if a rebuild had been killed after it moved the old one away.
    directory.rename(tmp_path / ".archive.replaced")
    report = rebuild_archive(spark, access, directory)
    assert report.contents.commits == 1
    assert report.transactions == sum(before.contents.next_ids().values()) + 4
    assert {each.name for each in tmp_path.iterdir()} == {"archive"}
    lags = archive_lag(access, directory)
    assert all(each.taken_in == each.logged for each in lags)
    assert verify_archive(spark, access, directory).differences == ()


def test_an_archive_longer_than_its_log_is_an_alarm(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    access = LogAccess(cluster)
    append(cluster, 4)
    report = add_to_archive(spark, access, tmp_path)
    end = report.contents.next_ids()[PartitionId(0)]
    beyond = TransactionRange(PartitionId(0), end, TransactionId(10**6))
    forged = ArchivedFile("partition=0/forged", beyond, 1, (Block(beyond, ""),))
    Archive.open(tmp_path).commit(report.contents, [forged])
    with pytest.raises(NotFoundError, match=r"^WALTZ-2001 partition 0 is archived to .* lost data"):
        add_to_archive(spark, access, tmp_path)
