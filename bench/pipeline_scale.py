"""Measure batches of derived tables while their keys become millions, with a small driver.

    python -m bench.pipeline_scale --target delta      # 10 million keys, 100 batches, 1 GiB of Java

A cluster of `waltz up` on this machine is filled with one transaction per key, each key once; the
keys come scattered, so that each batch has keys of every part of the table. A pipeline of one table
takes them in, in batches of equal size. Prints each batch when it is done: the keys in the table,
the seconds of the whole batch, of its reading and its commit, and the memory of the processes so
far. In the end it compares the number of keys and a digest with those that numpy computes of the
keys alone, reading the tables without Spark and without the pipeline's code (SQLite, or DuckDB's
readers of Delta and Iceberg), and ends with 1 if these differ.

Java and the Python workers are warmed up with some batches of another log partition into another
target first: otherwise the first batches would be slow, and the last ones look good next to them.
The log is filled by a process of its own, whose memory is not the driver's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import gcd
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import waltz
from bench.process_tree import Memory, MemoryWatch
from tests.clusters import running_cluster
from tests.spark.duck import opened_duck
from waltz.bench.signals import ended_in_order
from waltz.errors import WaltzError
from waltz.spark import spark_session
from waltz.spark.pipelines.definition import PipelineDefinition, parse_definition
from waltz.spark.pipelines.derived import take_in
from waltz.spark.pipelines.watch import BatchSeen, Beginning
from waltz.spark.progress import NextIds
from waltz.spark.tasks import LogAccess

PARTITIONS: Final = 4
WARM_UP_PARTITION: Final = PARTITIONS
WARM_UP_BATCHES_MAX: Final = 20
WARM_UP_ROWS_MAX: Final = 1_000_000
"""Transactions of the warm-up, all batches together."""
CHUNK: Final = 50_000
"""Transactions appended by one call."""
COMPARED_BATCHES: Final = 10
"""Batches at each end whose medians are compared; of few batches at most half."""
TARGETS: Final = ("sqlite", "delta", "iceberg")
MULTIPLIER: Final = 2_654_435_761
"""A prime: multiplied by it, modulo their number, keys are scattered and each comes once."""
VALUES: Final = 1_009
TABLE: Final = "totals"
DEFINITION: Final = """\
pipeline: tables
cluster: {cluster}
partitions: {partitions}
target: {target}
transactionsPerBatch: {batch}
decode: {{fields: {{k: bigint, v: bigint}}}}
tables:
  totals:
    keys: {{k: k}}
    measures: {{total: sum(v), moves: count(*)}}
"""
FACTS: Final = (
    "SELECT count(*), count(DISTINCT k), min(k), max(k), min(moves), max(moves), sum(total),"
    " sum((k % 1021) * total), sum((k - k % 1021) * total) FROM {table}"
)
DIGEST_DIVISOR: Final = 1_021
"""The number in `FACTS`."""


class Facts(NamedTuple):
    """The facts of a table that are compared. The last two, the digest, change if two keys change
    values."""

    rows: int
    keys: int
    first_key: int
    last_key: int
    moves_min: int
    moves_max: int
    total: int
    low_digest: int
    high_digest: int


@dataclass
class BatchFound:
    """A batch: the keys in the table after it, and the seconds it took, of these its parts."""

    number: int
    keys: int
    seconds: float
    read_seconds: float
    commit_seconds: float


@dataclass
class Result:
    """The result of a run; `flatness`: the median of the last batches' seconds as a multiple of
    that of the first ones."""

    target: str
    keys: int
    order: str
    memory: Memory
    batches: list[BatchFound] = field(default_factory=list)
    expected: Facts | None = None
    found: Facts | None = None

    @property
    def flatness(self) -> float:
        seconds = [each.seconds for each in self.batches]
        count = max(1, min(COMPARED_BATCHES, len(seconds) // 2))
        return statistics.median(seconds[-count:]) / statistics.median(seconds[:count])

    def as_json(self) -> str:
        return json.dumps({**asdict(self), "flatness": self.flatness}, indent=1) + "\n"


def keys_of(first: int, end: int, count: int, order: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the keys of the transactions from `first` to `end` of `count`; each key from 0 to
    `count` - 1 is that of one transaction."""
    numbers = np.arange(first, end, dtype=np.int64)
    if order == "ascending":
        return numbers
    assert gcd(MULTIPLIER, count) == 1, "a multiple of the prime is not a number of keys"
    return numbers * (MULTIPLIER % count) % count


def values_of(
    keys: np.ndarray[Any, np.dtype[np.int64]],
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the value that the transaction of each key adds; never 0."""
    return keys * 31 % VALUES + 1


def expected_facts(count: int) -> Facts:
    """Return the facts of a table that is right, from the keys alone."""
    keys = np.arange(count, dtype=np.int64)
    values = values_of(keys)
    low = keys % DIGEST_DIVISOR
    sums = (int(each.sum()) for each in (values, low * values, (keys - low) * values))
    return Facts(count, count, 0, count - 1, 1, 1, *sums)


def found_facts(target: str, place: Path) -> Facts:
    """Return the facts of the table that the pipeline has written, read by other programs."""
    if target == "sqlite":
        connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True)
        try:
            return Facts(*connection.execute(FACTS.format(table=TABLE)).fetchone())
        finally:
            connection.close()
    with opened_duck() as duck:
        return Facts(*duck.row(FACTS, place / TABLE))


def fill(cluster: str, count: int, order: str, warm_up_count: int) -> None:
    """Append one transaction per key, round the partitions, and the transactions of the warm-up."""
    began = said = time.monotonic()
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        warm_up = keys_of(0, warm_up_count, count, order)
        for first in range(0, len(warm_up), CHUNK):
            client.append_many(WARM_UP_PARTITION, records(warm_up[first : first + CHUNK]))
        chunk = min(CHUNK, -(-count // PARTITIONS))
        for number, first in enumerate(range(0, count, chunk)):
            end = min(first + chunk, count)
            client.append_many(number % PARTITIONS, records(keys_of(first, end, count, order)))
            if time.monotonic() > said + 10:
                said = time.monotonic()
                print(f"filled {end:,} of {count:,}", flush=True)
    print(f"filled {count:,} in {time.monotonic() - began:.0f} s", flush=True)


def records(keys: np.ndarray[Any, np.dtype[np.int64]]) -> list[bytes]:
    pairs = zip(keys.tolist(), values_of(keys).tolist(), strict=True)
    return [b'{"k":%d,"v":%d}' % pair for pair in pairs]


class Progress:
    """Prints each batch of a run when it is done."""

    def __init__(self, result: Result, watch: MemoryWatch, batches: int) -> None:
        self._result, self._watch, self._batches = result, watch, batches
        self._began = time.monotonic()

    def log_has(self, ends: NextIds) -> None:
        self._began = time.monotonic()

    def begins(self, beginning: Beginning) -> None:
        """Do nothing: each batch is printed when it is done."""

    def took_in(self, batch: BatchSeen) -> None:
        now = time.monotonic()
        each = BatchFound(
            len(self._result.batches) + 1,
            sum(batch.next_ids.values()),
            now - self._began,
            batch.seconds["read"],
            batch.seconds["commit"],
        )
        self._result.batches.append(each)
        self._watch.look()
        print(
            f"batch {each.number:3} of {self._batches}: {each.keys:10,} keys {each.seconds:7.2f} s"
            f" (read {each.read_seconds:.2f}, commit {each.commit_seconds:.2f});"
            f" {self._watch.memory}",
            flush=True,
        )
        self._began = time.monotonic()


class Place(NamedTuple):
    """The cluster that is read, and the kind of target with its directory; `buckets` of a table, or
    None for the default."""

    cluster: str
    directory: Path
    target: str
    buckets: int | None


def measure(
    directory: Path, target: str, buckets: int | None, keys: int, batches: int, order: str
) -> Result:
    """Fill a cluster in the directory, take everything in, and return the result. Raises
    WaltzError: the pipeline fails."""
    warm_up_batches = min(WARM_UP_BATCHES_MAX, batches)
    warm_up_rows = min(WARM_UP_ROWS_MAX, keys * warm_up_batches // batches)
    with running_cluster(directory / "data", "--partitions", str(PARTITIONS + 1)) as cluster:
        # Not forked, because Spark's and the client's threads would not be in the child.
        filling = multiprocessing.get_context("spawn").Process(
            target=fill, args=(cluster.coordinator, keys, order, warm_up_rows)
        )
        filling.start()
        filling.join()
        if filling.exitcode:
            raise WaltzError(f"the log could not be filled: exit code {filling.exitcode}")
        spark = spark_session(
            "pipeline_scale", **{"spark.master": "local[2]", "spark.driver.memory": "1g"}
        )
        access = LogAccess(cluster.coordinator)
        try:
            with MemoryWatch(java_pid(spark)) as watch:
                place = Place(cluster.coordinator, directory, target, buckets)
                size = -(-warm_up_rows // warm_up_batches)
                warm_up = definition(place, "warm-up", str(WARM_UP_PARTITION), size)
                warmed = take_in(spark, access, warm_up).batches
                print(f"warmed up with {warmed} batches", flush=True)
                result = Result(target, keys, order, watch.memory)
                size = -(-keys // batches)
                measured = definition(place, "tables", f"0-{PARTITIONS - 1}", size)
                take_in(spark, access, measured, Progress(result, watch, batches))
        finally:
            spark.stop()
        print("comparing with the keys themselves", flush=True)
        result.expected, result.found = expected_facts(keys), found_facts(target, measured.target)
        return result


def definition(place: Place, name: str, partitions: str, batch: int) -> PipelineDefinition:
    """Return the definition of the tables `name` of these log partitions."""
    values = {"cluster": place.cluster, "partitions": partitions, "batch": batch}
    text = DEFINITION.format(target=f"{place.target}:{name}", **values)
    if place.buckets is not None:
        text += f"buckets: {place.buckets}\n"
    return parse_definition(text, directory=place.directory)


def java_pid(spark: Any) -> int:
    """Return the process of the session's Java."""
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001


def differences(expected: Facts, found: Facts) -> list[str]:
    named: Mapping[str, int] = expected._asdict()
    return [
        f"{name}: expected {value:,}, found {getattr(found, name):,}"
        for name, value in named.items()
        if getattr(found, name) != value
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--target", choices=TARGETS, default="sqlite")
    parser.add_argument("--buckets", type=int, help="of a Delta or Iceberg table")
    parser.add_argument("--order", choices=("scattered", "ascending"), default="scattered")
    parser.add_argument("--directory", type=Path, help="made, and removed at the end")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args(arguments)
    if given.batches < 1 or given.keys < given.batches:
        parser.error("a batch has at least one key")
    directory = Path(tempfile.mkdtemp(prefix="waltz-scale-", dir=given.directory))
    try:
        what = (given.target, given.buckets, given.keys, given.batches, given.order)
        with ended_in_order():
            result = measure(directory, *what)
    finally:
        shutil.rmtree(directory)
    assert result.expected is not None
    assert result.found is not None
    if given.json is not None:
        given.json.write_text(result.as_json())
    print(
        f"{given.target}: the last batches took {result.flatness:.2f} times the first ones;"
        f" {result.memory}"
    )
    wrong = differences(result.expected, result.found)
    for each in wrong:
        print(f"wrong: {each}")
    if not wrong:
        print(f"right: {result.found.keys:,} keys, digest {result.found[-2:]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
