"""Measure Spark on Waltz, Kafka, Parquet and Delta, with the same rows: make league-spark

    python -m bench.spark_league --json bench/spark_league.json
    python -m bench.spark_league --trial --rows 20000 --rounds 1      # no figures, says the page

All systems run at the same time on this machine, Kafka and Waltz with three replicas each, and take
turns: each round reads all rows as a batch and as a stream, and writes them as a batch, from one
data frame of Parquet files, with one system after the other, each round in another order. The first
rounds warm up Java and are not counted.

Every read computes the number of the rows and a digest of partition and data, which must be those
of the rows; after every write the rows are counted. Processor time is that of Spark's Java, of
this process, of the Python workers, also of those that have ended, and of the system's own servers.
The Spark is 4.2, the newest one that has connectors for both Kafka and Delta, and is got by pip the
first time; with `--spark installed` it is that of the environment, and systems without a connector
are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.peers.kafka import WARM_UP_SECONDS
from bench.peers.kafka_node import VERSION as KAFKA_VERSION
from bench.peers.peer import UnavailableHereError, say
from bench.peers.spark_jars import DELTA_JARS, KAFKA_JARS, SPARK_VERSION, jars, use_spark
from bench.peers.spark_systems import (
    PARTITIONS,
    PER_TRIGGER,
    DeltaSystem,
    KafkaSystem,
    ParquetSystem,
    SparkSystem,
    WaltzSystem,
)
from bench.peers.spark_table import WORKS, spark_table
from bench.process_tree import ProcessorWatch
from waltz.bench.signals import ended_in_order
from waltz.errors import WaltzError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SYSTEMS: Final[Sequence[type[SparkSystem]]] = (
    WaltzSystem,
    KafkaSystem,
    ParquetSystem,
    DeltaSystem,
)
SIZES: Final = {128: 1, 1024: 4}
"""Bytes of data, and by how much there are fewer rows of this size."""
FACTS: Final = ("count(1)", "bit_xor(xxhash64(partition, data))")
DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """The number of rows, and the digest of their partitions and data."""

    rows: int
    digest: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A piece of work: rows, seconds of wall clock, and processor seconds of Spark with this
    process and all workers, and of the system's servers."""

    rows: int
    seconds: float
    spark_seconds: float
    server_seconds: float


class Meter:
    """Measures pieces of work of systems of which all have their servers below this process."""

    def __init__(
        self, spark: SparkSession, systems: Sequence[SparkSystem], watch: ProcessorWatch
    ) -> None:
        self._spark, self._systems, self._watch = spark, systems, watch

    def of(self, system: SparkSystem, work: Callable[[], int]) -> Measured:
        """Return what the work, which returns a number of rows, takes. Raises WaltzError: its
        processor time cannot be right."""
        assert self._spark._jvm is not None  # noqa: SLF001
        self._spark._jvm.java.lang.System.gc()  # noqa: SLF001 - garbage of the one before
        spark, servers = self._spark_seconds(), system.server_seconds()
        began = time.perf_counter()
        rows = work()
        seconds = time.perf_counter() - began
        spent = self._spark_seconds() - spark
        if not 0 < spent < 1.1 * seconds * (os.cpu_count() or 1) + 1:
            raise WaltzError(f"{system.name}: {spent:.1f} s of processor time in {seconds:.1f} s")
        return Measured(rows, seconds, spent, system.server_seconds() - servers)

    def _spark_seconds(self) -> float:
        servers = sum(each.server_seconds() for each in self._systems)
        return self._watch.seconds() - servers


def facts_of(rows: DataFrame) -> Facts:
    count, digest = rows.selectExpr(*FACTS).head() or (0, 0)
    return Facts(count, digest or 0)


def read_batch(system: SparkSystem, expected: Facts) -> int:
    """Read all rows. Raises WaltzError: they are not the rows expected."""
    return expect(system, "batch", facts_of(system.batch()), expected)


def read_stream(system: SparkSystem, expected: Facts, checkpoint: Path) -> int:
    """Read all rows as a stream with a new checkpoint. Raises as `read_batch`, and Spark's
    errors."""
    found: list[Facts] = []
    query = (
        system.stream()
        .writeStream.foreachBatch(lambda rows, _: found.append(facts_of(rows)))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    digest = 0
    for each in found:
        digest ^= each.digest
    return expect(system, "stream", Facts(sum(each.rows for each in found), digest), expected)


def expect(system: SparkSystem, work: str, found: Facts, expected: Facts) -> int:
    if found != expected:
        raise WaltzError(f"{system.name}, {work}: read {found}, expected {expected}")
    return found.rows


def expect_written(system: SparkSystem, number: int, expected: Facts) -> None:
    """Raises WaltzError: rows are missing, or are there twice though each should be there once."""
    found = system.written(number)
    if found < expected.rows or (system.writes_once and found != expected.rows):
        raise WaltzError(f"{system.name}, sink: {found:,} rows, expected {expected.rows:,}")
    if found > expected.rows:
        say(f"{system.name}, sink: {found:,} rows for {expected.rows:,}: tasks were run again")


def make_source(spark: SparkSession, place: Path, rows: int, data_bytes: int) -> None:
    """Write rows of letters and digits that do not compress well: a hash of each one's number."""
    blocks = (f"sha2(concat(id, '-', {number}), 512)" for number in range(data_bytes // 128))
    frame = spark.range(0, rows, 1, PARTITIONS).selectExpr(
        f"cast(id % {PARTITIONS} as int) partition",
        f"cast(concat({', '.join(blocks)}) as binary) data",
    )
    frame.write.parquet(str(place))


@dataclass(frozen=True)
class Plan:
    """The numbers of a run; `rows` are those of 128 B."""

    rows: int
    rounds: int
    warm_up_rounds: int
    server_warm_up_seconds: float


def measure_size(
    spark: SparkSession,
    directory: Path,
    classes: Sequence[type[SparkSystem]],
    size: int,
    plan: Plan,
) -> Iterator[tuple[str, str, Measured]]:
    """Yield system, work and result of each piece of work of the counted rounds."""
    source = directory / "source"
    make_source(spark, source, plan.rows // SIZES[size], size)
    rows = spark.read.parquet(str(source))
    expected = facts_of(rows)
    systems = [each(spark, directory) for each in classes]
    with ExitStack() as stack:
        for each in systems:
            say(f"{size} B: starting and filling {each.name}")
            stack.enter_context(each.running())
            if plan.server_warm_up_seconds:
                each.warm_up(plan.server_warm_up_seconds)
            each.fill(source)
        meter = Meter(spark, systems, stack.enter_context(ProcessorWatch()))
        for number in range(plan.warm_up_rounds + plan.rounds):
            turn = number % len(systems)
            is_counted = number >= plan.warm_up_rounds
            for work in WORKS:
                for each in [*systems[turn:], *systems[:turn]]:
                    checkpoint = directory / f"checkpoint-{each.name}-{number}"
                    found = one_piece(meter, each, work, rows, expected, number, checkpoint)
                    label = "" if is_counted else "warm-up "
                    say(f"{label}round {number}, {work}, {size} B, {each.name}: {shown(found)}")
                    if is_counted:
                        yield each.name, work, found


def one_piece(
    meter: Meter,
    system: SparkSystem,
    work: str,
    rows: DataFrame,
    expected: Facts,
    number: int,
    checkpoint: Path,
) -> Measured:
    """Measure one piece of work, and check what came of it."""
    if work == "batch":
        return meter.of(system, lambda: read_batch(system, expected))
    if work == "stream":
        try:
            return meter.of(system, lambda: read_stream(system, expected, checkpoint))
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)

    def write() -> int:
        system.write(rows, number)
        return expected.rows

    found = meter.of(system, write)
    expect_written(system, number, expected)
    return found


def shown(found: Measured) -> str:
    used = found.spark_seconds + found.server_seconds
    return (
        f"{found.rows / found.seconds:,.0f} rows/s, {found.rows / used:,.0f} per core-second"
        f" ({found.seconds:.1f} s, Spark {found.spark_seconds:.1f} s, servers"
        f" {found.server_seconds:.1f} s)"
    )


@contextmanager
def session(is_installed: bool) -> Iterator[tuple[SparkSession, dict[str, str]]]:
    """Yield Spark with the connectors, and the systems that have none, each with the reason."""
    from waltz.spark import spark_session

    missing: dict[str, str] = {}
    found: list[Path] = []
    conf: dict[str, object] = {"spark.master": "local[2]", "spark.driver.memory": "2g"}
    if is_installed and version("pyspark") != SPARK_VERSION:
        missing["Delta"] = (
            f"its connector is for Spark {SPARK_VERSION}, and here is {version('pyspark')}"
        )
    wanted = [("Kafka", KAFKA_JARS), ("Delta", DELTA_JARS)]
    for name, artifacts in wanted:
        if name not in missing:
            try:
                found += jars(name.lower(), artifacts)
            except UnavailableHereError as error:
                missing[name] = str(error)
    conf["spark.jars"] = ",".join(map(str, found))
    spark = spark_session("league", **conf, **({} if "Delta" in missing else DELTA))
    try:
        yield spark, missing
    finally:
        spark.stop()


def measure(plan: Plan, is_installed: bool, directory: Path) -> dict[str, Any]:
    """Return the figures of all sizes, as `spark_table` takes them."""
    systems: dict[str, Any] = {
        each.name: {"promise": each.promise, "found": {}} for each in SYSTEMS
    }
    with session(is_installed) as (spark, missing):
        classes = [each for each in SYSTEMS if each.name not in missing]
        for size in SIZES:
            place = directory / str(size)
            place.mkdir()
            for name, work, found in measure_size(spark, place, classes, size, plan):
                key = f"{work}, {size} B"
                systems[name]["found"].setdefault(key, []).append(asdict(found))
            shutil.rmtree(place)
    for name in missing:
        systems.pop(name)
    return {
        "spark": version("pyspark"),
        "kafka": KAFKA_VERSION,
        "rounds": plan.rounds,
        "warm_up_rounds": plan.warm_up_rounds,
        "server_warm_up_seconds": plan.server_warm_up_seconds,
        "rows": {f"{size} B": plan.rows // fewer for size, fewer in SIZES.items()},
        "per_trigger": PER_TRIGGER,
        "systems": systems,
        "missing": missing,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark_league",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="of 128 B; a quarter of 1 KiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up-rounds", type=int, default=2)
    parser.add_argument(
        "--server-warm-up-seconds", type=float, default=WARM_UP_SECONDS, help="of Kafka, per load"
    )
    parser.add_argument("--spark", choices=(SPARK_VERSION, "installed"), default=SPARK_VERSION)
    parser.add_argument("--trial", action="store_true", help="mark the page as a trial")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    if given.rows < 4 * PARTITIONS or given.rounds < 1:
        parser.error("some rows for each partition, and one round")
    is_installed = given.spark == "installed"
    if not is_installed:
        use_spark("bench.spark_league")
    load_before = os.getloadavg()[0]
    warm_up = (given.warm_up_rounds, given.server_warm_up_seconds)
    plan = Plan(given.rows, given.rounds, *warm_up)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=Path.cwd()))
    try:
        with ended_in_order():
            value = measure(plan, is_installed, directory)
    finally:
        shutil.rmtree(directory)
    value["trial"] = given.trial
    loads = {"load_before": load_before, "load_after": os.getloadavg()[0]}
    value["machine"] = {"cores": os.cpu_count(), **loads}
    print(spark_table(value), end="")
    if given.json is not None:
        given.json.write_text(json.dumps(value, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
