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
from tests.spark.archive_formats import KINDS, Kind, located
from tests.spark.listed_log import KEY, ListedLog
from tests.spark.test_reader import archive_of
from waltz.cluster.histories import Histories
from waltz.errors import (
    ConfigurationError,
    HistoryChangedError,
    NotFoundError,
    PartitionNotReadyError,
)
from waltz.spark.log_columns import log_schema
from waltz.spark.offsets import task_count_max
from waltz.spark.reader_pool import POOL
from waltz.spark.schema import arrow_schema
from waltz.spark.spark_options import parse_options
from waltz.spark.stream import WaltzStreamReader
from waltz.spark.tasks import read_task
from waltz.types import PartitionId, TransactionId

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
    POOL.close()
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


def next_ids(offset: dict[str, Any]) -> tuple[int, ...]:
    return tuple(offset[str(n)] for n in range(sum(key.isdigit() for key in offset)))


def test_marks_are_asked_for_once_per_micro_batch() -> None:
    log = ListedLog([b"a"], [b"b"])
    source = stream(log)
    start = source.initialOffset()
    for batch in range(1, 4):
        end = source.latestOffset(start, ALL)
        source.partitions(start, end)
        assert source.reportLatestOffset() == at(1, 1)
        assert log.questions == 1 + batch


def test_many_small_ranges_are_few_tasks_and_the_same_when_the_batch_runs_again() -> None:
    log = ListedLog(*([b"%d" % n] * 10 for n in range(1000)))
    source = stream(log, maxTasksPerTrigger="4")
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    assert end["tasks"] == 4
    tasks = source.partitions(start, end)
    assert len(tasks) == 4
    found = data_of(source, pickle.loads(pickle.dumps(tasks)))
    assert found == [b"%d" % n for n in range(1000) for _ in range(10)]
    # Another machine, or other options, after a restart: the batch is planned already.
    again = stream(log, maxTasksPerTrigger="9").partitions(start, json.loads(json.dumps(end)))
    assert again == tasks
    untold = stream(log).latestOffset(start, ALL)
    assert untold["tasks"] == task_count_max(10_000, 1)
    # A checkpoint of an earlier release says nothing: a task for each range, as then.
    del end["tasks"]
    assert len(source.partitions(start, end)) == 1000


def test_an_offset_at_which_nothing_is_new_is_the_one_before() -> None:
    log = ListedLog([b"a"], [b"b"], [b"c"])
    source = stream(log, maxTasksPerTrigger="2")
    end = source.latestOffset(source.initialOffset(), ALL)
    assert end["tasks"] == 2
    assert stream(log, maxTasksPerTrigger="1").latestOffset(end, ALL) == end


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_micro_batch_waits_for_a_least_number_of_transactions_but_not_for_ever() -> None:
    data, clock = [b"a"], Clock()
    log = ListedLog(data, [b"b"])
    given = {"cluster": "127.0.0.1:7100", "startingOffsets": "earliest"}
    options = {"minTransactionsPerTrigger": "4", "maxTriggerDelay": "30s"}
    parsed = parse_options({**given, **options}, is_stream=True)
    source = WaltzStreamReader(parsed, arrow_schema(log_schema()), log.open, now=clock)
    start = source.initialOffset()
    assert source.latestOffset(start, ALL) == start
    clock.seconds += 29.0
    data += [b"a"]
    assert source.latestOffset(start, ALL) == start
    data += [b"a"]  # enough
    end = source.latestOffset(start, ALL)
    assert next_ids(end) == (3, 1)
    clock.seconds += 1000.0  # there was nothing to wait for
    assert source.latestOffset(end, ALL) == end
    data += [b"a"]
    assert source.latestOffset(end, ALL) == end
    clock.seconds += 30.0
    later = source.latestOffset(end, ALL)
    assert next_ids(later) == (4, 1)
    data += [b"a"]
    assert source.latestOffset(later, ALL) == later
    source.prepareForTriggerAvailableNow()  # a query that ends does not wait
    assert next_ids(source.latestOffset(later, ALL)) == (5, 1)


def test_a_stream_may_begin_with_the_last_transactions_of_each_partition() -> None:
    log = ListedLog([b"a"] * 9, [b"b"] * 2)
    assert stream(log, startingOffsets="latest-3").initialOffset() == at(6, 0)


def test_a_stream_stops_at_its_end_and_keeps_it_over_a_restart() -> None:
    data = [b"a"] * 5
    log = ListedLog(data, [b"b"] * 2)
    options = {"endingOffsets": "latest", "maxTransactionsPerTrigger": "4"}
    source = stream(log, **options)
    start = source.initialOffset()
    assert start["end"] == {"0": 5, "1": 2}
    data += [b"later"] * 5
    middle = source.latestOffset(start, ReadMaxRows(4))
    assert next_ids(middle) == (2, 2)
    restarted = stream(log, **options)
    end = restarted.latestOffset(json.loads(json.dumps(middle)), ALL)
    assert next_ids(end) == (5, 2)
    assert restarted.latestOffset(end, ALL) == end
    assert data_of(restarted, restarted.partitions(middle, end)) == [b"a"] * 3
    # Without the option the same checkpoint goes on, and forgets the end.
    assert stream(log).latestOffset(end, ALL) == at(10, 2)


def test_an_end_may_be_named_before_the_log_has_come_there() -> None:
    data = [b"a"] * 2
    source = stream(ListedLog(data), endingOffsets='{"0": 4}')
    start = source.initialOffset()
    assert start == {**at(0), "end": {}}
    end = source.latestOffset(start, ALL)
    assert next_ids(end) == (2,)
    data += [b"a"] * 9
    assert next_ids(source.latestOffset(end, ALL)) == (4,)
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 partition 0 starts at 5, after"):
        stream(
            ListedLog(data), startingOffsets='{"0": 5}', endingOffsets='{"0": 4}'
        ).initialOffset()
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1005 option endingOffsets names"):
        stream(ListedLog(data), endingOffsets='{"3": 4}').initialOffset()


def test_a_partition_that_is_added_after_the_end_was_decided_has_nothing_before_it() -> None:
    source = stream(ListedLog([b"a"] * 3), endingOffsets="latest")
    start = source.initialOffset()
    grown = stream(ListedLog([b"a"] * 4, [b"new"] * 2), endingOffsets="latest")
    end = grown.latestOffset(start, ALL)
    assert next_ids(end) == (3, 0)
    assert grown.latestOffset(end, ALL) == end


def test_an_end_that_was_a_number_may_become_the_end_of_the_log() -> None:
    log = ListedLog([b"a"] * 9)
    numbered = stream(log, endingOffsets='{"0": 4}')
    end = numbered.latestOffset(numbered.initialOffset(), ALL)
    assert next_ids(end) == (4,)
    assert next_ids(stream(log, endingOffsets="latest").latestOffset(end, ALL)) == (9,)


def test_the_last_transactions_before_the_end_do_not_wait_for_others() -> None:
    log = ListedLog([b"a"] * 3)
    source = stream(log, endingOffsets="latest", minTransactionsPerTrigger="100")
    assert next_ids(source.latestOffset(source.initialOffset(), ALL)) == (3,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_takes_the_past_from_an_archive_and_goes_on_with_the_log(
    tmp_path: Path, kind: Kind
) -> None:
    data = [b"%d" % n for n in range(9)]
    log = ListedLog(data, [b"x", b"y"], [b"z"])
    archive = archive_of(located(kind, tmp_path), log, 6, 2)
    options = {"archive": str(archive), "maxTasksPerTrigger": "2"}
    source = stream(log, **options)
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    tasks = pickle.loads(pickle.dumps(source.partitions(start, end)))
    log.rows_read = 0
    assert data_of(source, tasks) == [*data, b"x", b"y", b"z"]
    assert log.rows_read == 4  # three of the first partition, and the third, which has no file
    # The archive has grown when the batch is run again: the rows of each task are the same.
    archive_of(located(kind, tmp_path), log, 9, 2, 1)
    again = stream(log, **options)
    for before, after in zip(tasks, again.partitions(start, end), strict=True):
        assert data_of(again, [before]) == data_of(again, [after])
    # What comes later is read from the log, under the same checkpoint.
    data.append(b"9")
    later = again.latestOffset(end, ALL)
    assert data_of(again, again.partitions(end, later)) == [b"9"]


def test_what_is_archived_after_the_log_was_asked_is_not_lost_data(tmp_path: Path) -> None:
    data = [b"a"] * 3

    class Growing(ListedLog):
        """A log that grows, with its archive, as soon as it was asked for the first time."""

        def high_water_marks(
            self, partition_ids: Sequence[PartitionId]
        ) -> dict[PartitionId, TransactionId]:
            found = super().high_water_marks(partition_ids)
            if self.questions == 1:
                data.extend([b"b"] * 3)
                archive_of(tmp_path, ListedLog(data), 6)
            return found

    archive_of(tmp_path, ListedLog(data), 3)
    source = stream(Growing(data), archive=str(tmp_path))
    start = source.initialOffset()
    assert next_ids(source.latestOffset(start, ALL)) == (6,)


def test_a_batch_of_the_archive_is_bounded_like_one_of_the_log(tmp_path: Path) -> None:
    log = ListedLog([b"%d" % n for n in range(9)], [b"x", b"y"])
    source = stream(log, archive=str(archive_of(tmp_path, log, 6, 2)))
    start = source.initialOffset()
    end = source.latestOffset(start, ReadMaxRows(5))
    assert next_ids(end) == (3, 2)
    log.rows_read = 0
    assert data_of(source, source.partitions(start, end)) == [b"0", b"1", b"2", b"x", b"y"]
    assert log.rows_read == 0


def test_a_stream_refuses_the_archive_of_another_log_or_history(tmp_path: Path) -> None:
    log = ListedLog([b"a"] * 9)
    archive = str(archive_of(tmp_path, log, 6))
    with pytest.raises(ConfigurationError, match=r"^WALTZ-2006 .* has the log of cluster"):
        stream(ListedLog([b"a"] * 9, key=UUID(int=2)), archive=archive).initialOffset()
    with pytest.raises(NotFoundError, match=r"^WALTZ-2001 partition 0 is archived to"):
        stream(ListedLog([b"a"] * 2), archive=archive).initialOffset()
    source = stream(log, archive=archive)
    start = source.initialOffset()
    log.restore(3)
    with pytest.raises(HistoryChangedError, match=r"^WALTZ-2017 the archive"):
        source.latestOffset(start, ALL)
    # So does a batch that is planned again by a query that has just begun.
    with pytest.raises(HistoryChangedError, match=r"^WALTZ-2017 the archive"):
        stream(log, archive=archive).partitions(at(0), at(6))


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
