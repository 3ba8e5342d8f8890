"""Systems that Spark reads and writes: the same rows in Waltz, Kafka, Parquet and Delta.

Each has the rows in partitions 0 to 3, as the columns `partition` and `data` of the frames that it
gives, and takes such rows as a sink, next to those that are read.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

import waltz
from bench.peers.kafka import LOG_CRITICAL, Kafka
from bench.peers.kafka import PARTITIONS as TOPICS
from bench.peers.peer import tree_seconds
from tests.clusters import RunningCluster, running_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 4
PER_TRIGGER: Final = 100_000
"""Rows of one micro-batch."""
FILES_PER_TRIGGER: Final = 4
FILE_ROWS: Final = PER_TRIGGER // FILES_PER_TRIGGER
APPENDED: Final = 10_000
"""Rows appended to Waltz by one call, before anything is measured."""


class SparkSystem(ABC):
    """A system with `rows` rows; `running` is entered first, then `fill` is called once."""

    name: str
    promise: str
    """The state of a row when the sink has ended, and how often a row may be there."""
    writes_once = True
    """Whether a row of the sink is there once, whatever tasks are run again."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory

    @abstractmethod
    def running(self) -> AbstractContextManager[None]:
        """Run the system's servers until the block ends. Raises UnavailableHereError."""

    @abstractmethod
    def fill(self, source: Path) -> None:
        """Take the rows of a directory of Parquet files."""

    def warm_up(self, seconds: float) -> None:  # noqa: B027 - most systems need none
        """Warm the servers up, if they need it, with loads of `seconds` each."""

    @abstractmethod
    def batch(self) -> DataFrame:
        """Return all rows."""

    @abstractmethod
    def stream(self) -> DataFrame:
        """Return all rows as a stream, `PER_TRIGGER` per micro-batch."""

    @abstractmethod
    def write(self, rows: DataFrame, number: int) -> None:
        """Write the rows as a batch. `number` is that of the call, from 0."""

    @abstractmethod
    def written(self, number: int) -> int:
        """Return the number of rows that the call of this number has added, and remove them if the
        system can."""

    def server_seconds(self) -> float:
        """Return the processor seconds of the system's servers."""
        return 0.0


class WaltzSystem(SparkSystem):
    name = "Waltz"
    promise = "in the logs of a majority of three replicas, each synced; each row once"

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        super().__init__(spark, directory)
        self._before = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        options = ("--partitions", str(2 * PARTITIONS))
        with running_cluster(self.directory / "waltz", *options) as cluster:
            self._cluster: RunningCluster = cluster
            yield

    def fill(self, source: Path) -> None:
        files = sorted(source.glob("*.parquet"))
        with waltz.open_client(self._cluster.coordinator, waltz.NoCallbacks()) as client:
            for each in files:
                for batch in pq.ParquetFile(each).iter_batches(APPENDED):
                    table = batch.to_pydict()
                    for partition in range(PARTITIONS):
                        client.append_many(partition, data_of(table, partition))

    def batch(self) -> DataFrame:
        return self._columns(self._options(self.spark.read))

    def stream(self) -> DataFrame:
        options = {"startingOffsets": "earliest", "maxTransactionsPerTrigger": PER_TRIGGER}
        return self._columns(self._options(self.spark.readStream).options(**options))

    def _options(self, reader: Any) -> Any:
        cluster = reader.format("waltz").option("cluster", self._cluster.coordinator)
        return cluster.option("partitions", f"0-{PARTITIONS - 1}")

    def _columns(self, reader: Any) -> DataFrame:
        columns: DataFrame = reader.load().select("partition", "data")
        return columns

    def write(self, rows: DataFrame, number: int) -> None:
        moved = rows.selectExpr(f"partition + {PARTITIONS} partition", "data")
        sink = moved.write.format("waltz").mode("append")
        sink.option("cluster", self._cluster.coordinator).save()

    def written(self, number: int) -> int:
        with waltz.open_reader(self._cluster.coordinator) as log:
            marks = log.high_water_marks(range(PARTITIONS, 2 * PARTITIONS))
        now = sum(each + 1 for each in marks.values())
        added, self._before = now - self._before, now
        return added

    def server_seconds(self) -> float:
        return tree_seconds(self._cluster.process.pid)


def data_of(table: dict[str, list[Any]], partition: int) -> list[bytes]:
    """Return the data of the rows of one partition, in their order."""
    pairs = zip(table["partition"], table["data"], strict=True)
    return [data for found, data in pairs if found == partition]


class KafkaSystem(SparkSystem):
    name = "Kafka"
    promise = f"{Kafka.durability}; a task that is run again writes its rows again"
    writes_once = False

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        super().__init__(spark, directory)
        self._kafka = Kafka()
        self._before = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        place = self.directory / "kafka"
        place.mkdir()
        with self._kafka.nodes(place, {"rows": PARTITIONS, "sink": PARTITIONS, **TOPICS}):
            yield

    def warm_up(self, seconds: float) -> None:
        # The brokers are Java, which compiles what is called often after a minute of its time.
        self._kafka.warm_up(seconds)

    def fill(self, source: Path) -> None:
        self._write(self.spark.read.parquet(str(source)), "rows")

    def batch(self) -> DataFrame:
        return self._columns(self._options(self.spark.read))

    def stream(self) -> DataFrame:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": PER_TRIGGER}
        return self._columns(self._options(self.spark.readStream).options(**options))

    def _options(self, reader: Any) -> Any:
        servers = reader.format("kafka").option("kafka.bootstrap.servers", self._kafka.servers)
        return servers.option("subscribe", "rows")

    def _columns(self, reader: Any) -> DataFrame:
        columns: DataFrame = reader.load().selectExpr("partition", "value data")
        return columns

    def write(self, rows: DataFrame, number: int) -> None:
        self._write(rows, "sink")

    def _write(self, rows: DataFrame, topic: str) -> None:
        sink = rows.selectExpr("partition", "data value").write.format("kafka")
        sink.option("kafka.bootstrap.servers", self._kafka.servers).option("topic", topic).save()

    def written(self, number: int) -> int:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._kafka.servers,
                "group.id": "league",
                "log_level": LOG_CRITICAL,
            }
        )
        try:
            ends = [
                consumer.get_watermark_offsets(TopicPartition("sink", each), timeout=60.0)[1]
                for each in range(PARTITIONS)
            ]
        finally:
            consumer.close()
        added, self._before = sum(ends) - self._before, sum(ends)
        return added

    def server_seconds(self) -> float:
        return self._kafka.server_seconds()


class ParquetSystem(SparkSystem):
    name = "Parquet"
    promise = "in files of one disk, not synced, no replica: UNSYNCED; each row once"
    format = "parquet"

    @contextmanager
    def running(self) -> Iterator[None]:
        yield

    def fill(self, source: Path) -> None:
        rows = self.spark.read.parquet(str(source)).write.format(self.format)
        rows.option("maxRecordsPerFile", FILE_ROWS).save(str(self._place()))

    def batch(self) -> DataFrame:
        return self.spark.read.format(self.format).load(str(self._place()))

    def stream(self) -> DataFrame:
        source = self.spark.readStream.format(self.format)
        if self.format == "parquet":
            source = source.schema(self.batch().schema)
        return source.option("maxFilesPerTrigger", FILES_PER_TRIGGER).load(str(self._place()))

    def write(self, rows: DataFrame, number: int) -> None:
        rows.write.format(self.format).save(str(self._place(number)))

    def written(self, number: int) -> int:
        place = self._place(number)
        count: int = self.spark.read.format(self.format).load(str(place)).count()
        shutil.rmtree(place)
        return count

    def _place(self, number: int | None = None) -> Path:
        return self.directory / (self.format if number is None else f"{self.format}-{number}")


class DeltaSystem(ParquetSystem):
    name = "Delta"
    format = "delta"
