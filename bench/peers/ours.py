"""Waltz as a peer of the others: three replicas, each synced before it votes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.peers.peer import Found, Load, Peer
from waltz.bench.calibration import Calibration, calibrate
from waltz.bench.run import run
from waltz.bench.trial_cluster import BenchTarget, Shape, trial_cluster
from waltz.bench.workload import Workload

PARTITIONS = 4


class Ours(Peer):
    name = "Waltz, 3 replicas"
    durability = "in the logs of a majority of three replicas, each synced; applied at the client"
    driver = "Python, its client"
    batching = "100 in a call of append_many"

    def __init__(self) -> None:
        super().__init__()
        self._calibration: Calibration | None = None
        self._target: BenchTarget | None = None

    @contextmanager
    def running(self, directory: Path) -> Iterator[None]:
        self._calibration = calibrate()
        shape = Shape(PARTITIONS, tls=False, slow_sync_seconds=0.0, is_fresh=False)
        with trial_cluster(directory / "cluster", shape) as self._target:
            yield

    def begin(self, text: str) -> None:
        """Show nothing."""

    def tick(self, transactions: int) -> None:
        """Show nothing."""

    def apply(self, load: Load, seconds: float) -> tuple[int, float, float, float]:
        found = self.measure(load, seconds)
        return found.transactions, found.seconds, found.p50_seconds, found.p99_seconds

    def measure(self, load: Load, seconds: float) -> Found:
        assert self._target is not None
        assert self._calibration is not None
        workload = workload_of(load, seconds)
        (only,) = run(workload, self._target, self._calibration, self).rounds
        assert only.latency is not None
        p50, p99 = only.latency.quantiles([0.5, 0.99])
        used = float(np.sum(list(only.processor.values())))
        return Found(only.transactions, only.seconds, p50, p99, used)


def workload_of(load: Load, seconds: float) -> Workload:
    """Return the load as a workload: all of it on one partition, unless it is in batches."""
    verb = "append_many" if load.batch > 1 else "append" if load.outstanding == 1 else "submit"
    return Workload(
        name=load.name,
        verb=verb,
        data_bytes=load.data_bytes,
        partitions=PARTITIONS if verb == "append_many" else 1,
        window=load.outstanding,
        batch=load.batch,
        duration_seconds=seconds,
        warm_up_seconds=min(1.0, seconds / 5),
        rounds=1,
    )
