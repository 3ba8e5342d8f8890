"""What reading, archiving, deriving, proving and auditing a log cost.

`python -m tests.spark.throughput --transactions 1000000`, on a cluster of its own on this machine.
Prints for each piece of work how long it took, how many transactions that makes a second, and how
much processor time Spark and the cluster spent on it: on a machine that others use as well only the
latter can be trusted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import waltz
from bench.pipeline_scale import java_pid
from bench.process_tree import MemoryWatch, ProcessorWatch
from tests.clusters import RunningCluster, running_cluster
from waltz.spark import spark_session
from waltz.spark.archive_location import parse_location
from waltz.spark.pipelines import derived
from waltz.spark.pipelines.archiving import add_to_archive, verify_archive
from waltz.spark.pipelines.audit import audit
from waltz.spark.pipelines.definition import parse_definition
from waltz.spark.pipelines.proof import verify
from waltz.spark.tasks import LogAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
ACCOUNTS = 1_000
CHUNK = 100_000
"""Transactions written at a time."""
TABLES = """\
pipeline: tables
cluster: {cluster}
target: tables.db
decode: {{fields: {{account: bigint, amount: bigint}}}}
tables:
  accounts:
    keys: [account]
    measures: {{balance: sum(amount), moves: count(*)}}
"""
AUDIT = "pipeline: audit\ncluster: {cluster}\ntarget: audit.json\narchive: {archive}\n"


def record(number: int, size: int) -> bytes:
    start = b'{"account":%d,"amount":%d,"note":"' % (number * 7919 % ACCOUNTS, number % 199 - 99)
    return start.ljust(size - 2, b"x") + b'"}'


def fill(cluster: str, count: int, size: int) -> None:
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for first in range(0, count, CHUNK):
            for partition in range(PARTITIONS):
                numbers = range(first + partition, min(first + CHUNK, count), PARTITIONS)
                client.append_many(
                    partition,
                    [record(number, size) for number in numbers],
                    headers=[number % 5 for number in numbers],
                )


class Measurement:
    """Measures one piece of work after the other."""

    def __init__(self, cluster: RunningCluster, count: int, watch: ProcessorWatch) -> None:
        self._cluster = {int(each["pid"]) for each in cluster.state["processes"]}
        self._count = count
        self._watch = watch

    def _spent(self) -> tuple[float, float]:
        """Return what the cluster and all else of this run have spent so far."""
        served = self._watch.seconds(self._cluster)
        return served, self._watch.seconds() - served

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        served, own = self._spent()
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        now_served, now_own = self._spent()
        print(
            f"{name:36} {seconds:6.1f} s {self._count / seconds:10,.0f}/s"
            f"  cpu: spark {now_own - own:6.1f} s, cluster {now_served - served:6.1f} s",
            flush=True,
        )


def works(
    spark: SparkSession, directory: Path, cluster: str, *, is_delta: bool
) -> Mapping[str, Callable[[], object]]:
    """Return the pieces of work by their names, in an order in which each finds what it needs."""
    access = LogAccess(cluster)
    spelled = f"delta:{directory / 'archive'}" if is_delta else str(directory / "archive")
    archive = parse_location(spelled, directory)
    tables, copies = (
        parse_definition(each.format(cluster=cluster, archive=spelled), directory=directory)
        for each in (TABLES, AUDIT)
    )

    def read(wanted: str) -> None:
        log = spark.read.format("waltz").option("cluster", cluster).option("data", wanted)
        log.load().write.format("noop").mode("overwrite").save()

    def read_archive() -> None:
        archived = spark.read.format("waltz").option("archive", spelled).load()
        archived.write.format("noop").mode("overwrite").save()

    def read_files() -> None:
        files = spark.read.parquet(*map(str, (directory / "archive").glob("partition=*")))
        files.write.format("noop").mode("overwrite").save()

    def verify_copies() -> None:
        assert not verify_archive(spark, access, archive).differences

    def verify_tables() -> None:
        assert not verify(spark, access, tables).differences

    def compare_replicas() -> None:
        assert audit(spark, access, copies).is_equal

    return {
        "read": partial(read, "true"),
        "read without data": partial(read, "false"),
        "archive run": partial(add_to_archive, spark, access, archive),
        "archive verify": verify_copies,
        "read of the archive": read_archive,
        "the same Parquet files by Spark": read_files,
        "tables run": partial(derived.take_in, spark, access, tables),
        "tables verify": verify_tables,
        "audit, three replicas and archive": compare_replicas,
    }


def measure(directory: Path, cluster: RunningCluster, chosen: argparse.Namespace) -> None:
    settings = {"spark.master": chosen.master, "spark.sql.shuffle.partitions": 2}
    if chosen.driver_memory:
        settings["spark.driver.memory"] = chosen.driver_memory
    spark = spark_session("throughput", **settings)
    spark.range(1).mapInPandas(lambda frames: frames, "id long").count()  # the workers are there
    known = works(spark, directory, cluster.coordinator, is_delta=chosen.delta)
    if unknown := set(chosen.work or ()) - set(known):
        raise SystemExit(f"no work is called {', '.join(unknown)}; there are {', '.join(known)}")
    with MemoryWatch(java_pid(spark)) as watch, ProcessorWatch() as processors:
        done = Measurement(cluster, chosen.transactions, processors)
        for name in chosen.work or known:
            with done.of(name):
                known[name]()
            print(f"{'':36} peaks so far: {watch.memory}", flush=True)
    places = {"log": directory / "data", "archive": directory / "archive"}
    for name, place in (*places.items(), ("tables", directory / "tables.db")):
        files = [place, *place.rglob("*")]
        print(f"{name}: {sum(each.stat().st_size for each in files if each.is_file()):,} bytes")
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=128, help="bytes of data of each")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--driver-memory", help="of Java, as 1g")
    parser.add_argument("--delta", action="store_true", help="archive into a Delta table")
    parser.add_argument("--work", action="append", help="a name as it is printed; default: all")
    chosen = parser.parse_args()
    with TemporaryDirectory(prefix="waltz-throughput-") as name:
        directory = Path(name)
        with running_cluster(directory / "data", "--partitions", str(PARTITIONS)) as cluster:
            began = time.monotonic()
            # Another process, whose memory is not the driver's; not forked, because of threads.
            filling = multiprocessing.get_context("spawn").Process(
                target=fill, args=(cluster.coordinator, chosen.transactions, chosen.size)
            )
            filling.start()
            filling.join()
            if filling.exitcode:
                raise SystemExit(f"the log could not be filled: exit code {filling.exitcode}")
            print(f"the log was filled in {time.monotonic() - began:,.1f} s", flush=True)
            measure(directory, cluster, chosen)


if __name__ == "__main__":
    main()
