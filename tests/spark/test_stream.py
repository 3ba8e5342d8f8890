"""The stream reader: planned against a log of values, then by Spark on a real cluster."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import waltz
from tests.spark.listed_log import KEY, ListedLog
from waltz.cluster.histories import Histories
from waltz.errors import (
    ConfigurationError,
    HistoryChangedError,
    NotFoundError,
    PartitionNotReadyError,
)
from waltz.spark.schema import arrow_schema, log_schema
from waltz.spark.spark_options import parse_options
from waltz.spark.stream import WaltzStreamReader
from waltz.spark.tasks import read_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL = ReadAllAvailable()


def stream(log: ListedLog, **options: str) -> WaltzStreamReader:
    given = {"cluster": "127.0.0.1:7100", "startingOffsets": "earliest", **options}
    parsed = parse_options(given, is_stream=True)
    return WaltzStreamReader(parsed, arrow_schema(log_schema()), log.open)


def data_of(source: WaltzStreamReader, tasks: Sequence[InputPartition]) -> list[bytes]:
    return [
        row["data"] for task in tasks for batch in source.read(task) for row in batch.to_pylist()
    ]


def at(*next_ids: int, key: UUID = KEY) -> dict[str, Any]:
    return {"cluster": str(key), **{str(n): value for n, value in enumerate(next_ids)}}


def test_a_stream_starts_where_it_is_told_and_otherwise_at_the_end() -> None:
    """PS-02."""
    log = ListedLog([b"a", b"b"], [b"c"])
    assert stream(log).initialOffset() == at(0, 0)
    assert stream(log, startingOffsets='{"0": 1}').initialOffset() == at(1, 0)
    untold = parse_options({"cluster": "127.0.0.1:7100"}, is_stream=True)
    source = WaltzStreamReader(untold, arrow_schema(log_schema()), log.open)
    assert source.initialOffset() == at(2, 1)


def test_a_checkpoint_beyond_the_point_of_a_restore_is_refused_by_name() -> None:
    """The log has grown past it again, and `failOnDataLoss` makes no difference."""
    log = ListedLog([b"a"] * 9, [b"b"] * 9)
    for options in ({}, {"failOnDataLoss": "false"}):
        source = stream(log, **options)
        assert source.latestOffset(at(0, 0), ALL) == at(9, 9)
        restored = log.restore(5, 9)
        with pytest.raises(HistoryChangedError) as raised:
            source.latestOffset(at(6, 9), ALL)
        said = str(raised.value)
        assert said.startswith(
            f"WALTZ-2017 the checkpoint has applied partition 0 of history {KEY}"
        )
        assert (
            "restored from an archive at 2026-10-01T00:00:00+00:00: from transaction 5 on the"
            in said
        )
        assert f"has history {restored}. Transactions 5 to 5, as" in said
        assert said.endswith(
            "Use another checkpoint, and a target without the rows of those transactions"
        )
        # A checkpoint at the point follows on, and is of the new history from then on.
        reached = source.latestOffset(at(5, 9), ALL)
        assert reached == {"history": str(restored), **at(9, 9)}
        assert source.latestOffset(reached, ALL) == reached
        assert source.initialOffset() == {"history": str(restored), **at(0, 0)}
        assert source.reportLatestOffset() == reached
        log.histories = Histories(KEY)


def test_a_batch_that_was_planned_before_a_restore_is_not_read_after_it() -> None:
    """Spark runs a batch again whose end is in the checkpoint already."""
    log = ListedLog([b"a"] * 9)
    source = stream(log)
    tasks = source.partitions(at(0), at(9))
    restored = log.restore(5)
    refused = pytest.raises(HistoryChangedError, match=r"^WALTZ-2017 .* 5 to 8, as they were")
    whole = arrow_schema(log_schema())
    for schema in (whole, pa.schema([whole.field("partition"), whole.field("transaction_id")])):
        with refused:
            list(read_task(source._access, schema, tasks[0], rows_max=10))
    assert data_of(source, source.partitions(at(0), at(5))) == [b"a"] * 5
    follows = {"history": str(restored), **at(9)}
    assert data_of(source, source.partitions(at(5), follows)) == [b"a"] * 4


def test_the_start_stays_where_it_was_when_spark_asks_again() -> None:
    data = [b"a"]
    source = stream(ListedLog(data), startingOffsets="latest")
    first = source.initialOffset()
    data.append(b"b")
    assert source.initialOffset() == first == at(1)


def test_a_micro_batch_goes_to_the_end_of_the_log_or_as_far_as_allowed() -> None:
    """PS-03."""
    source = stream(ListedLog([b"a"] * 9, [b"b"] * 9), maxTransactionsPerTrigger="4")
    assert source.getDefaultReadLimit() == ReadMaxRows(4)
    assert source.latestOffset(at(0, 0), ReadMaxRows(4)) == at(2, 2)
    assert source.latestOffset(at(0, 0), ALL) == at(9, 9)
    assert stream(ListedLog([])).getDefaultReadLimit() == ALL


def test_a_micro_batch_has_as_many_bytes_as_allowed() -> None:
    """PS-03."""
    log = ListedLog([b"a" * 10] * 9, [b"b" * 10] * 9)
    source = stream(log, maxBytesPerTrigger="40")
    assert source.getDefaultReadLimit() == ReadMaxBytes(40)
    assert source.latestOffset(at(0, 0), ReadMaxBytes(40)) == at(2, 2)
    assert log.bytes_read < 100
    assert source.latestOffset(at(0, 0), ALL) == at(9, 9)
    both = stream(log, maxBytesPerTrigger="60", maxTransactionsPerTrigger="2")
    assert both.latestOffset(at(0, 0), both.getDefaultReadLimit()) == at(1, 1)
    log.error = PartitionNotReadyError("partition 0 has no server")
    with pytest.raises(PartitionNotReadyError, match=r"^WALTZ-2004"):
        source.latestOffset(at(0, 0), ReadMaxBytes(40))


def test_available_now_ends_with_what_there_was() -> None:
    data = [b"a", b"b"]
    source = stream(ListedLog(data, []))
    source.prepareForTriggerAvailableNow()
    data.append(b"c")
    assert source.latestOffset(at(0, 0), ALL) == at(2, 0)
    assert source.latestOffset(at(3, 0), ALL) == at(3, 0)  # a checkpoint that is further already


def test_a_partition_added_later_is_read_from_its_first_transaction() -> None:
    source = stream(ListedLog([b"a"], [b"b", b"c"]))
    end = source.latestOffset(at(1), ALL)
    assert end == at(1, 2)
    assert data_of(source, source.partitions(at(1), end)) == [b"b", b"c"]


def test_partitions_that_are_not_read_any_more_keep_their_place() -> None:
    source = stream(ListedLog([b"a"] * 5, [b"b"] * 5), partitions="1")
    assert source.latestOffset(at(2, 2), ALL) == at(2, 5)


def test_the_same_offsets_give_the_same_tasks_each_time() -> None:
    log = ListedLog([b"a"] * 7)
    first = stream(log, minPartitions="3").partitions(at(1), at(6))
    log.error = PartitionNotReadyError("away")  # planning asks nobody
    assert stream(log, minPartitions="3").partitions(at(1), at(6)) == first
    assert len(first) == 3


def test_planning_keeps_one_connection_and_ships_none() -> None:
    """PS-05."""
    log = ListedLog([b"a"])
    source = stream(log)
    source.initialOffset()
    source.latestOffset(at(0), ALL)
    assert source.reportLatestOffset() == at(1)
    assert log.open_count == 1
    assert data_of(source, pickle.loads(pickle.dumps(source.partitions(at(0), at(1))))) == [b"a"]
    source.stop()
    source.stop()
    assert log.open_count == 0


def test_after_an_error_the_next_question_connects_anew() -> None:
    log = ListedLog([b"a"])
    source = stream(log)
    log.error = PartitionNotReadyError("partition 0 has no server")
    with pytest.raises(PartitionNotReadyError, match=r"^WALTZ-2004 cluster 127.0.0.1:7100: part"):
        source.latestOffset(at(0), ALL)
    assert log.open_count == 0
    log.error = None
    assert source.latestOffset(at(0), ALL) == at(1)


def test_a_checkpoint_of_another_log_is_refused() -> None:
    source = stream(ListedLog([b"a"]))
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2003 127.0.0.1:7100 leads to"):
        source.latestOffset(at(0, key=UUID(int=9)), ALL)


def test_a_log_that_has_lost_data_fails_the_query_or_is_waited_for() -> None:
    """PS-08."""
    log = ListedLog([b"a"])
    with pytest.raises(NotFoundError, match=r"^WALTZ-2001 partition 0 was read to 4"):
        stream(log).latestOffset(at(5), ALL)
    patient = stream(log, failOnDataLoss="false")
    assert patient.latestOffset(at(5), ALL) == at(5)


@pytest.mark.spark
@pytest.mark.processes
def test_a_query_goes_on_from_its_checkpoint(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    """PS-02, PS-03. Nothing is lost and nothing comes twice, over three runs of one query."""
    batches: list[tuple[int, list[tuple[int, int, bytes]]]] = []

    def keep(frame: DataFrame, batch_id: int) -> None:
        rows = frame.collect()
        batches.append((batch_id, [(r.partition, r.transaction_id, bytes(r.data)) for r in rows]))

    with waltz.open_reader(cluster) as log:
        start = {str(n): log.high_water_mark(n) + 1 for n in range(log.partition_count)}
    written: set[tuple[int, int, bytes]] = set()
    for run in range(3):
        with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
            for number in range(20):
                data = b"%d of run %d" % (number, run)
                written.add((number % 2, client.append(number % 2, data), data))
        query = (
            spark.readStream.format("waltz")
            .option("cluster", cluster)
            .option("startingOffsets", json.dumps(start))
            .option("maxTransactionsPerTrigger", 8)
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.lastProgress is not None
        reported = json.loads(query.lastProgress["sources"][0]["latestOffset"])
        assert reported["0"] == start["0"] + 10 * (run + 1)
    rows = [row for _, batch in batches for row in batch]
    assert len(rows) == len(written) == 60
    assert set(rows) == written
    assert [batch_id for batch_id, _ in batches] == list(range(len(batches)))
    assert all(len(batch) <= 8 for _, batch in batches)


@pytest.mark.spark
@pytest.mark.processes
def test_the_code_of_an_error_reaches_whoever_runs_the_query(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    source = spark.readStream.format("waltz").option("cluster", cluster)
    query = (
        source.option("startingOffsets", '{"0": 99999}')
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    with pytest.raises(StreamingQueryException, match=r"WALTZ-2001 .*partition 0 at 99999"):
        query.awaitTermination()
