"""The sink in Spark: data frames and streams into a real cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql.types import IntegerType, StructField, StructType

import waltz
from tests.clusters import run_waltz, running_cluster
from waltz.spark import spark_session
from waltz.spark.data_source import WaltzDataSource
from waltz.system.real_host import real_host
from waltz.types import parse_coordinator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]


def marks(cluster: str) -> list[int]:
    with waltz.open_reader(cluster) as log:
        return [log.high_water_mark(each) for each in range(log.partition_count)]


def written_since(cluster: str, before: list[int]) -> list[tuple[int, int, bytes]]:
    with waltz.open_reader(cluster) as log:
        return [
            (partition, int(header), bytes(data))
            for partition, mark in enumerate(before)
            for run in log.read(partition, mark + 1, log.high_water_mark(partition) + 1)
            for header, data in zip(run.headers, run.data, strict=True)
        ]


def numbers(spark: SparkSession, count: int, tag: str) -> DataFrame:
    return spark.range(0, count, 1, 3).selectExpr(
        "cast(id % 2 as int) partition", "cast(id as int) header", f"concat('{tag} ', id) data"
    )


def expected(count: int, tag: str) -> Counter[tuple[int, int, bytes]]:
    return Counter((n % 2, n, b"%s %d" % (tag.encode(), n)) for n in range(count))


def test_a_data_frame_is_appended_and_a_named_write_only_once(
    spark: SparkSession, cluster: str
) -> None:
    """PS-07."""
    before = marks(cluster)
    writer = (
        numbers(spark, 100, "a").write.format("waltz").mode("append").option("cluster", cluster)
    )
    writer.save()
    assert Counter(written_since(cluster, before)) == expected(100, "a")
    before = marks(cluster)
    for _ in range(2):
        writer.option("writeId", "the first hundred").save()
    assert Counter(written_since(cluster, before)) == expected(100, "a")
    # What comes next under this name may be the same and is written.
    writer.option("batchId", 1).save()
    assert Counter(written_since(cluster, before)) == expected(100, "a") + expected(100, "a")


def test_another_thread_writes_after_asking_for_the_session(
    spark: SparkSession, cluster: str
) -> None:
    """PS-07. Its Java thread is not the one that the session was started in."""
    before = marks(cluster)

    def write() -> None:
        frame = numbers(spark_session("tests"), 10, "t")
        frame.write.format("waltz").mode("append").option("cluster", cluster).save()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(write).result()
    assert Counter(written_since(cluster, before)) == expected(10, "t")


def noted(cluster: str) -> list[str]:
    async def names() -> list[str]:
        coordinator = real_host(parse_coordinator(cluster)).coordinator
        try:
            return list(await coordinator.children("/waltz/notes"))
        finally:
            await coordinator.close()

    return asyncio.run(names())


def test_only_named_writes_are_remembered(spark: SparkSession, cluster: str) -> None:
    frame = numbers(spark, 3, "n").repartition(1)
    writer = frame.write.format("waltz").mode("append").option("cluster", cluster)
    writer.option("writeId", "kept/for ever").save()
    before = noted(cluster)
    assert "spark-kept%2Ffor%20ever-0" in before
    frame.write.format("waltz").mode("append").option("cluster", cluster).save()
    assert noted(cluster) == before
    # The row without data fails after others are in the log.
    failing = spark.range(0, 4, 1, 2).selectExpr("0 partition", "if(id = 3, null, 'x') data")
    with pytest.raises(PythonException, match="WALTZ-1008"):
        failing.write.format("waltz").mode("append").option("cluster", cluster).save()
    assert noted(cluster) == before


def test_a_stream_is_appended_and_a_batch_that_runs_again_adds_nothing(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    """PS-07. The query fails in the middle of a batch; Spark runs the same batch again."""
    marker = str(tmp_path / "failed")

    def failing_once(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == 3 and not Path(marker).exists():
                Path(marker).touch()
                while marks(cluster) == middle:  # something of this attempt stays in the log
                    time.sleep(0.05)
                raise OSError("the first attempt dies here")
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 5)
    before = marks(cluster)
    numbers(spark, 60, "s").write.format("waltz").mode("append").option("cluster", cluster).save()
    middle = marks(cluster)
    source = (
        spark.readStream.format("waltz")
        .option("cluster", cluster)
        .option("startingOffsets", f'{{"0": {before[0] + 1}, "1": {before[1] + 1}}}')
        .load()
        .where("data like 's %'")
    )
    copies = source.selectExpr("1 - partition partition", "header", "concat('copy of ', data) data")
    started = (
        copies.mapInArrow(failing_once, copies.schema)
        .writeStream.format("waltz")
        .option("cluster", cluster)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    with pytest.raises(StreamingQueryException, match="the first attempt dies here"):
        started.start().awaitTermination()
    assert 0 < len(written_since(cluster, middle)) < 60
    started.start().awaitTermination()
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Counter(written_since(cluster, middle)) == Counter(
        (1 - partition, header, b"copy of " + data) for partition, header, data in expected(60, "s")
    )


def test_wrong_columns_are_refused_by_name(spark: SparkSession, cluster: str) -> None:
    """PS-07."""
    frame = spark.range(1).selectExpr("cast(id as int) partition", "id data")
    writer = frame.write.format("waltz").mode("append").option("cluster", cluster)
    with pytest.raises(AnalysisException, match="WALTZ-1004 column data is bigint; the sink takes"):
        writer.save()


def test_a_null_names_its_column_and_row(spark: SparkSession, cluster: str) -> None:
    """PS-07."""
    frame = spark.range(1).selectExpr("cast(null as int) partition", "'x' data")
    writer = frame.write.format("waltz").mode("append").option("cluster", cluster)
    with pytest.raises(PythonException, match="WALTZ-1008 row 0 of the task: partition is null"):
        writer.save()


def test_the_log_is_not_overwritten(spark: SparkSession, cluster: str) -> None:
    writer = numbers(spark, 1, "o").write.format("waltz").option("cluster", cluster)
    with pytest.raises(AnalysisException, match="WALTZ-1003 the log can only be appended to"):
        writer.mode("overwrite").save()
    source = WaltzDataSource({"cluster": cluster})
    schema = StructType([StructField("partition", IntegerType())])
    with pytest.raises(waltz.ConfigurationError, match="WALTZ-1003 the log can only"):
        source.streamWriter(schema, True)


def test_locks_come_from_columns(spark: SparkSession, cluster: str) -> None:
    """PS-07, PM-20 to PM-22."""
    before = marks(cluster)
    lock = "array(named_struct('name', 'account', 'id', id))"
    frame = spark.range(4).selectExpr(
        "0 partition", "'x' data", f"{lock} write_locks", f"{lock} append_locks",
        "cast(null as array<struct<name:string,id:bigint>>) read_locks",
    )  # fmt: skip
    frame.write.format("waltz").mode("append").option("cluster", cluster).save()
    assert written_since(cluster, before) == [(0, 0, b"x")] * 4


def test_a_sink_finds_its_cluster_by_servers(spark: SparkSession, cluster: str) -> None:
    """F-36."""
    status = json.loads(run_waltz("status", "--cluster", cluster, "--json").stdout)
    before = marks(cluster)
    servers = f"waltz://{status['partitions'][0]['server']}"
    writer = numbers(spark, 10, "w").write.format("waltz").mode("append")
    writer.option("cluster", servers).save()
    assert Counter(written_since(cluster, before)) == expected(10, "w")


@pytest.mark.long
def test_a_checkpoint_of_one_cluster_writes_nothing_into_another(
    spark: SparkSession, cluster: str, tmp_path: Path
) -> None:
    """F-1: the error has both keys, and the first cluster goes on where it was."""
    rows, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    rows.mkdir()

    def write(number: int, address: str, **options: str) -> None:
        (rows / f"{number}.txt").write_text(f"row {number}")
        (
            spark.readStream.schema("value string").text(str(rows))
            .selectExpr("0 partition", "value data")
            .writeStream.format("waltz")
            .option("cluster", address)
            .options(checkpointLocation=checkpoint.as_uri(), **options)
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )  # fmt: skip

    before = marks(cluster)
    write(1, cluster)
    with waltz.open_notes(cluster) as notes:
        key = str(notes.read_cluster_key())
    with running_cluster(tmp_path / "other", "--partitions", "2") as running:
        other = str(running.state["cluster_key"])
        for refused in ({}, {"clusterKey": other}):
            with pytest.raises(StreamingQueryException) as raised:
                write(2, running.coordinator, **refused)
            said = str(raised.value)
            assert "WALTZ-2003" in said
            assert f"while cluster {key} was written to" in said
            assert f"leads to cluster {other}" in said
            assert "Nothing was written. Write to the previous cluster, or use another" in said
        assert marks(running.coordinator) == [-1, -1]
    with pytest.raises(StreamingQueryException, match=f"{key}; expected cluster {other}"):
        write(2, cluster, clusterKey=other)
    assert written_since(cluster, before) == [(0, 0, b"row 1")]
    write(3, cluster, clusterKey=key)
    assert [data for _, _, data in written_since(cluster, before)] == [b"row 1", b"row 2", b"row 3"]
