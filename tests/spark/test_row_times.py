"""Times in Spark: by value, and with a real session on a cluster whose nodes note times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest

import waltz
from tests.clusters import wait_until
from waltz import LogTimes, TimeColumns, TransactionAt
from waltz.errors import ConfigurationError
from waltz.spark.data_source import WaltzDataSource
from waltz.spark.log_columns import log_schema
from waltz.spark.offsets import Offsets
from waltz.spark.row_times import (
    expect_no_times,
    offsets_before,
    offsets_from,
    parse_timestamp,
    with_times,
    without_times,
)
from waltz.spark.schema import TIME_COLUMNS, arrow_schema
from waltz.spark.spark_options import parse_options
from waltz.types import PartitionId, ReplicaId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
P0, P1 = PartitionId(0), PartitionId(1)


@pytest.mark.parametrize(
    "text", ["2026-11-24T12:00Z", "2026-11-24T13:00:00+01:00", str(int(NOON.timestamp() * 1000))]
)
def test_a_time_has_a_zone_or_is_a_number_of_milliseconds(text: str) -> None:
    assert parse_timestamp("startingTimestamp", text) == NOON


@pytest.mark.parametrize("text", ["", "noon", "2026-11-24T12:00", "2026-11-24", "9" * 15, "-5"])
def test_other_times_are_refused_with_the_option(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option endingTimestamp is"):
        parse_timestamp("endingTimestamp", text)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, "exclude each other"),
        ({"endingTimestamp": "1", "endingOffsets": "latest"}, "exclude each other"),
        ({"startingTimestamp": "2", "endingTimestamp": "2"}, "expected a time before endingTime"),
        ({"times": "perhaps"}, "option times is 'perhaps'"),
    ],
)
def test_options_that_do_not_fit_each_other_are_refused(
    options: dict[str, str], fault: str
) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        parse_options({"cluster": "127.0.0.1:7100", **options})


def test_only_a_cluster_knows_times() -> None:
    for options in ({"times": "true"}, {"startingTimestamp": "1"}, {"endingTimestamp": "1"}):
        with pytest.raises(ConfigurationError, match="needs option cluster"):
            parse_options({"archive": "/a", **options})
    schema = log_schema(with_times=True)
    with pytest.raises(ConfigurationError, match="column committed_after needs option cluster"):
        WaltzDataSource({"path": "/a"}).reader(schema)
    expect_no_times(arrow_schema(log_schema()))


class PlacesToldBy:
    """The answers of storage nodes, by the time that is asked for."""

    def __init__(self, places: Mapping[datetime, Mapping[PartitionId, TransactionAt]]) -> None:
        self._places = places

    def transactions_at(
        self, moment: datetime, marks: Mapping[PartitionId, TransactionId]
    ) -> Mapping[PartitionId, TransactionAt]:
        return self._places[moment]


def place(first: int, later: int | None) -> TransactionAt:
    known = None if later is None else TransactionId(later)
    return TransactionAt(TransactionId(first), known, {ReplicaId("s1:1"): "away"})


t = TransactionId
MARKS = {P0: TransactionId(9), P1: TransactionId(4)}


def test_everything_that_may_be_of_the_time_is_read_and_what_is_uncertain_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = {P0: place(3, 3), P1: place(2, None)}
    before = NOON - timedelta(milliseconds=1)
    times = cast(LogTimes, PlacesToldBy({NOON: told, before: told}))
    assert offsets_from(times, NOON, MARKS) == Offsets("earliest", {P0: t(3), P1: t(2)})
    assert offsets_before(times, NOON, MARKS) == Offsets("latest", {P0: t(3), P1: t(5)})
    said = [each.getMessage() for each in caplog.records]
    assert said == [
        f"timestamp_uncertain partition=1 option={option} first=2 last=4 reason=away"
        for option in ("startingTimestamp", "endingTimestamp")
    ]


def test_times_are_asked_for_once_per_batch_and_are_null_where_nothing_is_noted() -> None:
    schema = pa.schema(
        [("committed_before", TIME_COLUMNS["committed_before"]), ("header", pa.int32())]
    )
    inner = without_times(schema)
    assert inner.names == ["header", "transaction_id"]
    assert without_times(inner) is inner
    batch = pa.record_batch({"header": pa.array([1, 2], pa.int32()), "transaction_id": [5, 8]})
    empty = batch.slice(0, 0)
    asked: list[tuple[int, int, int]] = []

    def ask(partition_id: PartitionId, first: int, end: int) -> TimeColumns:
        asked.append((partition_id, first, end))
        bounds = np.array([1, 2, 3, "NaT"], "datetime64[ms]")
        return TimeColumns(bounds, bounds, {})

    found = list(with_times(iter([batch, empty]), schema, P1, ask))
    assert asked == [(1, 5, 9)]
    assert found[0].schema == schema
    assert found[0].column(0).to_pylist() == [datetime.fromtimestamp(0.001, UTC), None]
    assert len(found[1]) == 0


@pytest.fixture(scope="module")
def spread(cluster: str) -> tuple[list[int], list[waltz.TransactionTime]]:
    """Three transactions of partition 0 whose intervals do not meet, and these intervals."""
    ids: list[int] = []
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:

        def append_later() -> bool:
            written = client.append(0, b"spread")
            found = client.time_of(0, written).not_before
            last = client.time_of(0, ids[-1]).not_after if ids else None
            is_later = found is not None and (not ids or (last is not None and last < found))
            if is_later:
                ids.append(written)
            return is_later

        for _ in range(3):
            wait_until(append_later, "no transaction is known to be later than the one before")
        return ids, [client.time_of(0, each) for each in ids]


def read(spark: SparkSession, cluster: str, **options: Any) -> Any:
    source = spark.read.format("waltz").option("cluster", cluster).option("partitions", "0")
    return source.options(**options).load()


@pytest.mark.spark
@pytest.mark.processes
def test_a_read_by_times_has_all_that_may_be_of_them_and_shows_the_bounds(
    spark: SparkSession, cluster: str, spread: tuple[list[int], list[waltz.TransactionTime]]
) -> None:
    ids, times = spread
    first, second, _ = times
    assert first.not_before is not None
    assert second.not_before is not None
    assert second.not_after is not None
    frame = read(
        spark,
        cluster,
        startingTimestamp=second.not_before.isoformat(),
        endingTimestamp=(second.not_after + timedelta(milliseconds=1)).isoformat(),
        times="true",
        data="false",
    )
    assert set(TIME_COLUMNS) <= set(frame.columns)
    rows = {row.transaction_id: row for row in frame.collect()}
    assert ids[1] in rows
    assert ids[0] not in rows
    assert ids[2] not in rows
    shown = rows[ids[1]]
    assert shown.committed_after.astimezone(UTC) == second.not_before
    assert shown.committed_before.astimezone(UTC) == second.not_after
    found = (
        spark.read.format("waltz")
        .option("cluster", cluster)
        .option("partitions", "0")
        .option("startingTimestamp", first.not_before.isoformat())
        .schema("committed_before timestamp, transaction_id bigint")
        .load()
        .filter("transaction_id = " + str(ids[0]))
        .collect()
    )
    assert [row.committed_before.astimezone(UTC) for row in found] == [first.not_after]
    assert not set(TIME_COLUMNS) & set(read(spark, cluster).columns), "only if asked for"


@pytest.mark.spark
@pytest.mark.processes
def test_a_stream_begins_with_a_time(
    spark: SparkSession,
    cluster: str,
    spread: tuple[list[int], list[waltz.TransactionTime]],
    tmp_path: Path,
) -> None:
    ids, times = spread
    assert times[1].not_before is not None
    source = spark.readStream.format("waltz").option("cluster", cluster).option("partitions", "0")
    source = source.option("startingTimestamp", times[1].not_before.isoformat())
    query = (
        source.option("times", "true")
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    found = {row.transaction_id: row.committed_before for row in rows}
    assert ids[0] not in found
    assert {ids[1], ids[2]} <= found.keys()
    assert found[ids[1]] is not None
