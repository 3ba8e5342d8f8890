"""The whole path: clients, one server, three synced replicas, as processes on this machine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

import waltz
from bench.calibration import Calibration
from tests.clusters import running_cluster

DATA = bytes(128)
ONE_BY_ONE = 500
SUBMITTED = 20_000
PARTITIONS = 4


class Append(waltz.TransactionContext):
    """One transaction of 128 bytes with two write and two read locks that nobody contends for."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.sent_at = time.perf_counter()

    def partition_id(self, partition_count: int) -> int:
        return self.number % partition_count

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        builder.set_data(DATA)
        number = self.number
        builder.set_write_locks([lock("a", number), lock("b", number)])
        builder.set_read_locks([lock("c", number), lock("d", number)])
        return True


def lock(name: str, number: int) -> waltz.PartitionLocalLock:
    return waltz.PartitionLocalLock(name, number)


@contextmanager
def scratch_cluster() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as directory:
        place = Path(directory) / "cluster"
        with running_cluster(place, "--partitions", str(PARTITIONS)) as cluster:
            yield cluster.coordinator


def measure(calibration: Calibration) -> Iterator[str]:
    """Yield a line per workload, as multiples of a synced write of this run."""
    with scratch_cluster() as coordinator:
        yield one_by_one(coordinator, calibration)
        for pending in (16, 256):
            yield many(coordinator, pending, calibration)
        yield read_back(coordinator)


def one_by_one(coordinator: str, calibration: Calibration) -> str:
    taken = []
    with waltz.open_client(coordinator, waltz.NoCallbacks()) as client:
        for _ in range(ONE_BY_ONE):
            start = time.perf_counter()
            client.append(0, DATA)
            taken.append(time.perf_counter() - start)
    cuts = quantiles(taken, n=100)
    return (
        f"append, one at a time: p50 {cuts[49] * 1e3:.2f} ms, p99 {cuts[98] * 1e3:.2f} ms,"
        f" p50 is {cuts[49] / calibration.sync_seconds:.1f} x write+sync"
    )


def many(coordinator: str, pending: int, calibration: Calibration) -> str:
    with waltz.open_client(
        coordinator, waltz.NoCallbacks(), max_concurrent_transactions=pending
    ) as client:
        start = time.perf_counter()
        for number in range(SUBMITTED):
            client.submit(Append(number))
        client.flush()
        taken = time.perf_counter() - start
    rate = SUBMITTED / taken
    return (
        f"submit with 4 locks, {pending} outstanding in each of {PARTITIONS} partitions:"
        f" {rate:,.0f}/s, {rate * calibration.sync_seconds:.2f} per write+sync"
    )


def read_back(coordinator: str) -> str:
    rows = 0
    start = time.perf_counter()
    with waltz.open_reader(coordinator) as log:
        for partition in range(log.partition_count):
            mark = log.high_water_mark(partition)
            rows += sum(len(run.data) for run in log.read(partition, 0, mark + 1))
    return f"read with bodies: {rows / (time.perf_counter() - start):,.0f} rows/s"
