"""What reading, archiving, deriving, proving and auditing a log cost.

`python -m tests.spark.throughput --transactions 1000000`, on a cluster of its own on this machine.
Prints for each piece of work how long it took, how many transactions that makes a second, and how
much processor time Spark and the cluster spent on it: on a machine that others use as well only the
latter can be trusted.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import waltz
from tests.clusters import RunningCluster, running_cluster
from waltz.spark import spark_session
from waltz.spark.pipelines import derived
from waltz.spark.pipelines.archiving import add_to_archive, verify_archive
from waltz.spark.pipelines.audit import audit
from waltz.spark.pipelines.definition import parse_definition
from waltz.spark.pipelines.proof import verify
from waltz.spark.tasks import LogAccess

PARTITIONS = 4
ACCOUNTS = 1_000
CHUNK = 100_000
"""Transactions written at a time."""
TICKS = os.sysconf("SC_CLK_TCK")
LOOK_SECONDS = 0.2
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
AUDIT = "pipeline: audit\ncluster: {cluster}\ntarget: audit.json\narchive: archive\n"


def record(number: int, size: int) -> bytes:
    entry = {"account": number * 7919 % ACCOUNTS, "amount": number % 199 - 99, "note": ""}
    entry["note"] = "x" * (size - len(json.dumps(entry)))
    return json.dumps(entry).encode()


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


def cpu_seconds(pid: int) -> float:
    """What a process has spent by itself; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def descendants(root: int) -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


class Measurement:
    """Measures one piece of work after the other.

    Processes are looked at several times a second: the workers of Spark come and go, and nobody has
    the figures of those that have gone.
    """

    def __init__(self, cluster: RunningCluster, count: int) -> None:
        self._cluster = {int(each["pid"]) for each in cluster.state["processes"]}
        self._count = count
        self._seen: dict[int, float] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._look_often, daemon=True).start()

    def _look_often(self) -> None:
        while True:
            self._spent()
            time.sleep(LOOK_SECONDS)

    def _spent(self) -> tuple[float, float]:
        """Return what the cluster and all else of this run have spent so far."""
        with self._lock:
            for pid in descendants(os.getpid()):
                self._seen[pid] = max(self._seen.get(pid, 0.0), cpu_seconds(pid))
            served = sum(self._seen.get(pid, 0.0) for pid in self._cluster)
            return served, sum(self._seen.values()) - served

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


def measure(directory: Path, cluster: RunningCluster, count: int, master: str) -> None:
    settings = {"spark.master": master, "spark.sql.shuffle.partitions": 2}
    spark = spark_session("throughput", **settings)
    spark.range(1).mapInPandas(lambda frames: frames, "id long").count()  # the workers are there
    access = LogAccess(cluster.coordinator)
    texts = {"tables": TABLES, "audit": AUDIT}
    tables, copies = (
        parse_definition(texts[each].format(cluster=cluster.coordinator), directory=directory)
        for each in texts
    )
    done = Measurement(cluster, count)
    for name, wanted in (("read", "true"), ("read without data", "false")):
        with done.of(name):
            log = spark.read.format("waltz").option("cluster", cluster.coordinator)
            log.option("data", wanted).load().write.format("noop").mode("overwrite").save()
    with done.of("archive run"):
        add_to_archive(spark, access, directory / "archive")
    with done.of("archive verify"):
        assert not verify_archive(spark, access, directory / "archive").differences
    archived = spark.read.format("waltz").option("archive", str(directory / "archive"))
    with done.of("read of the archive"):
        archived.load().write.format("noop").mode("overwrite").save()
    with done.of("the same Parquet files by Spark"):
        files = spark.read.parquet(*map(str, (directory / "archive").glob("partition=*")))
        files.write.format("noop").mode("overwrite").save()
    with done.of("tables run"):
        derived.take_in(spark, access, tables)
    with done.of("tables verify"):
        assert not verify(spark, access, tables).differences
    with done.of("audit, three replicas and archive"):
        assert audit(spark, access, copies).is_equal
    size = sum(each.stat().st_size for each in (directory / "archive").rglob("*.parquet"))
    print(f"archive {size:,} bytes, tables {tables.target.stat().st_size:,} bytes")
    for pid in sorted(descendants(os.getpid())):
        status = Path(f"/proc/{pid}/status").read_text()
        peak = next((each for each in status.splitlines() if each.startswith("VmHWM")), "")
        name = status.splitlines()[0].split()[-1]
        print(f"{name} {pid}: {' '.join(peak.split())}")
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=128, help="bytes of data of each")
    parser.add_argument("--master", default="local[2]")
    chosen = parser.parse_args()
    with TemporaryDirectory(prefix="waltz-throughput-") as name:
        directory = Path(name)
        with running_cluster(directory / "data", "--partitions", str(PARTITIONS)) as cluster:
            fill(cluster.coordinator, chosen.transactions, chosen.size)
            measure(directory, cluster, chosen.transactions, chosen.master)


if __name__ == "__main__":
    main()
