"""Copies of the log on a real cluster, compared in Spark tasks: equal, changed, out of reach."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

import waltz
from tests.clusters import RunningCluster, running_cluster
from tests.damage import change_data
from tests.spark.archive_formats import KINDS, Kind, located
from tests.spark.overtaken import OvertakenAccess
from waltz.errors import ConfigurationError
from waltz.spark.any_archive import create_archive
from waltz.spark.pipelines.archiving import add_to_archive
from waltz.spark.pipelines.audit import AuditReport, CopyReport, audit
from waltz.spark.pipelines.definition import PipelineDefinition, parse_definition
from waltz.spark.tasks import LogAccess
from waltz.types import PartitionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]

COUNT = 10_050
"""In partition 0: more than one block."""
CHANGED = 10_017


PLACES = {"parquet": "archive", "delta": "table"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audited")


@pytest.fixture(scope="module")
def cluster(started_spark: SparkSession, directory: Path) -> Iterator[RunningCluster]:
    """One whose second storage node was changed while it was down, with the checksums that go
    with what it has now, so that nobody but an audit can tell. `archive` was made before."""
    with running_cluster(directory / "data", "--partitions", "2") as first:
        with waltz.open_client(
            first.coordinator, waltz.NoCallbacks(), max_concurrent_transactions=2_000
        ) as client:
            for number in range(COUNT):
                client.submit(waltz.PlainAppend(0, b"data of %d" % number, header=number))
            client.flush()
            client.append(1, b"alone")
        access = LogAccess(first.coordinator)
        for kind in KINDS:
            place = located(kind, directory / PLACES[kind])
            add_to_archive(started_spark, access, place, partitions=[PartitionId(0)])
        equal = audit(started_spark, access, defined(first.coordinator, directory))
        assert equal.is_equal, equal.to_text()
        assert equal.transactions == COUNT + 1
        assert json.loads((directory / "audit.json").read_text())["equal"]
        assert equal.to_text().splitlines()[-1] == f"equal: {COUNT + 1:,} transactions"
    change_data(
        directory / "data" / "storage-2",
        *(0, CHANGED),
        also_record_checksum=True,
        also_data_checksum=True,
    )
    with running_cluster(directory / "data") as second:
        yield second


def defined(coordinator: str, directory: Path, more: str = "") -> PipelineDefinition:
    text = f"pipeline: audit\ncluster: {coordinator}\ntarget: audit.json\n{more}"
    return parse_definition(text, directory=directory)


def of_partition(report: AuditReport, partition: int) -> dict[str, CopyReport]:
    return {each.name: each for each in report.copies if each.partition_id == partition}


def test_the_one_changed_record_of_the_one_replica_is_named(
    spark: SparkSession, cluster: RunningCluster, directory: Path
) -> None:
    access = LogAccess(cluster.coordinator)
    found = audit(spark, access, defined(cluster.coordinator, directory, "archive: archive\n"))
    (difference,) = found.differences
    assert (difference.partition_id, difference.transaction_id) == (0, CHANGED)
    (name,) = difference.names
    assert name in of_partition(found, 0)
    assert f"{name}: data at byte 12 is 0x27, not 0x37, unlike " in difference.detail
    assert "the archive" in difference.detail
    assert found.is_complete
    assert not found.is_equal
    assert [each.compared for each in found.copies] == [COUNT] * 4 + [1] * 3
    assert f"\ndifferent:\nWALTZ-2008 partition 0, transaction {CHANGED}: " in found.to_text()
    written = json.loads((directory / "audit.json").read_text())
    assert (written["equal"], written["complete"]) == (False, True)
    assert written["differences"] == [
        {"partition": 0, "transaction": CHANGED, "copies": [name], "text": str(difference)}
    ]
    only = audit(spark, access, defined(cluster.coordinator, directory, "partitions: 1\n"))
    assert (only.is_equal, only.transactions) == (True, 1)


@pytest.mark.long
def test_a_node_that_is_down_is_told_and_never_called_equal(
    spark: SparkSession, cluster: RunningCluster, directory: Path
) -> None:
    pid = cluster.pid("storage-2")
    os.kill(pid, signal.SIGSTOP)
    try:
        found = audit(
            spark, LogAccess(cluster.coordinator), defined(cluster.coordinator, directory)
        )
    finally:
        os.kill(pid, signal.SIGCONT)
    assert found.differences == ()
    assert (found.is_complete, found.is_equal) == (False, False)
    (down,) = (each for each in of_partition(found, 0).values() if each.trouble)
    assert down.compared == 0
    assert down.trouble is not None
    assert down.trouble.startswith("no answer from 127.0.0.1:")
    others = [each.compared for each in found.copies if each.partition_id == 0 and each != down]
    assert others == [COUNT, COUNT]
    lines = found.to_text().splitlines()
    assert f"  {down.name}: not compared: {down.trouble}" in lines
    assert lines[-1] == "no difference in what was compared, but not everything could be compared"


@pytest.mark.long
def test_a_single_copy_is_equal_to_nothing_but_the_archive(
    spark: SparkSession, cluster: RunningCluster, directory: Path
) -> None:
    """Without a server only what was committed when the last session began has to be equal."""
    with waltz.open_reader(cluster.coordinator) as reader:  # the session has begun
        assert [reader.high_water_mark(each) for each in range(2)] == [COUNT - 1, 0]
    impatient = partial(waltz.open_reader, timeout_seconds=1.0)
    access = LogAccess(cluster.coordinator, open_reader=impatient)
    stopped = [cluster.pid(name) for name in ("server-1", "storage-2", "storage-3")]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        found = audit(spark, access, defined(cluster.coordinator, directory, "archive: archive\n"))
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert (found.transactions, found.differences, found.is_equal) == (COUNT, (), False)
    first, second = of_partition(found, 0), of_partition(found, 1)
    (left,) = (each for each in second.values() if each.note)
    assert left.trouble == "no other copy to compare with from transaction 0 on"
    assert first[left.name].compared == first["the archive"].compared == COUNT
    assert first[left.name].trouble is None
    assert first[left.name].note == (
        "no server gave the high-water mark; compared up to the last known one"
    )
    assert len([each for each in first.values() if each.trouble]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_without_its_files_or_of_another_log_is_found_out(
    spark: SparkSession, cluster: RunningCluster, directory: Path, kind: Kind
) -> None:
    access = LogAccess(cluster.coordinator)
    emptied = directory / f"emptied-{kind}"
    shutil.copytree(directory / PLACES[kind], emptied)
    text = f"archive: {located(kind, emptied)}\n"
    whole = audit(spark, access, defined(cluster.coordinator, directory, text))
    assert of_partition(whole, 0)["the archive"].compared == COUNT
    for path in emptied.glob("partition=0/*.parquet"):
        path.unlink()
    broken = audit(spark, access, defined(cluster.coordinator, directory, text))
    missing = [each for each in broken.differences if each.names == ("the archive",)]
    assert [each.transaction_id for each in missing] == [0, 10_000]
    assert missing[0].detail.startswith("the archive: it cannot be read: WALTZ-2006 ")
    other = located(kind, directory / f"other-{kind}")
    create_archive(other, uuid4())
    definition = defined(cluster.coordinator, directory, f"archive: {other}\n")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2006 .* has the log of cluster"):
        audit(spark, access, definition)


def test_an_archive_that_grows_once_the_log_was_asked_is_compared_as_far_as_it_was_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running_cluster(tmp_path / "data", "--partitions", "2") as running:
        place = running.coordinator

        def another_run() -> None:
            with waltz.open_client(place, waltz.NoCallbacks()) as client:
                client.append(0, b"more")
            add_to_archive(spark, LogAccess(place), tmp_path / "archive")

        another_run()
        access = OvertakenAccess(place, meanwhile=[another_run])
        found = audit(spark, access, defined(place, tmp_path, "archive: archive\n"))
    assert found.is_equal, found.to_text()
    assert found.transactions == 1
