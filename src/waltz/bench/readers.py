"""Clients that read: consumers that follow a load, feeds that catch up, and ranges."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import waltz
from waltz.bench.workload import Workload
from waltz.errors import ConfigurationError, OperationTimeoutError

COLLECT_SECONDS_MAX: Final = 120.0

Access = tuple[str, waltz.TlsSettings | None]
"""The address of the cluster, and the TLS settings of its connections."""


class Following(waltz.WaltzClientCallbacks):
    """Applies everything after `marks` and remembers the time of each transaction outside of the
    warm-up."""

    def __init__(
        self, marks: Mapping[int, int], writers: frozenset[int], *, bodies: bool, prefetch: bool
    ) -> None:
        self._marks = marks
        self._writers = writers
        self._bodies = bodies
        self.prefetch = bodies and prefetch
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)
        self.seen: list[tuple[int, int, int, int]] = []
        self.times: list[tuple[int, int]] = []

    def get_client_high_water_mark(self, partition_id: waltz.PartitionId) -> int:
        return self._marks[partition_id]

    def apply_transactions(self, transactions: Sequence[waltz.Transaction]) -> None:
        if self._bodies:
            for transaction in transactions:
                transaction.data  # noqa: B018 - fetched before, or by this
        found = [
            (each.request_id.client_id, each.header, each.partition_id, each.transaction_id)
            for each in transactions
            if each.header >= 0 and each.request_id.client_id in self._writers
        ]
        now = time.monotonic_ns()
        with self._came:
            self.seen += found
            self.times.append((now, len(found)))
            self._came.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait until `count` transactions came. Raises OperationTimeoutError: they did not."""
        with self._came:
            if not self._came.wait_for(lambda: len(self.seen) >= count, COLLECT_SECONDS_MAX):
                raise OperationTimeoutError(
                    f"a consumer has got {len(self.seen)} of {count} transactions"
                    f" {COLLECT_SECONDS_MAX:.0f} s after the writers had ended"
                )


@dataclass(frozen=True, slots=True)
class Followed:
    """The transactions that a consumer got in a round, an entry each; times in nanoseconds."""

    since: int
    """The time at which the consumer started."""
    client_ids: NDArray[np.int64]
    headers: NDArray[np.int64]
    partition_ids: NDArray[np.int64]
    transaction_ids: NDArray[np.int64]
    applied: NDArray[np.int64]
    processor_seconds: float


class Consumer:
    """Follows one round after the other."""

    def __init__(self, access: Access, workload: Workload) -> None:
        self._access = access
        self._workload = workload
        self._client: waltz.WaltzClient | None = None
        self._callbacks: Following | None = None
        self._since = 0
        self._processor = 0.0

    def prepare(self, writers: frozenset[int]) -> None:
        """Note the end of the log; start at once unless the workload wants a backlog."""
        cluster, tls = self._access
        with waltz.open_reader(cluster, tls=tls) as log:
            marks = {each: int(log.high_water_mark(each)) for each in range(log.partition_count)}
        self._callbacks = Following(
            marks, writers, bodies=self._workload.bodies, prefetch=self._workload.prefetch
        )
        self._processor = time.process_time()
        if not self._workload.consumers_after_seconds:
            self._come()

    def follow(self, start: int) -> None:
        """Come late if that is wanted; `start` is that of the round."""
        after = self._workload.consumers_after_seconds
        if after:
            time.sleep(max(0.0, start / 1e9 + after - time.monotonic()))
            self._come()

    def collect(self, count: int) -> Followed:
        """Return the transactions once `count` of them came, and close."""
        assert self._callbacks is not None
        assert self._client is not None
        self._callbacks.wait_for(count)
        processor = time.process_time() - self._processor
        self._client.close()
        client_ids, headers, partition_ids, transaction_ids = (
            np.array(self._callbacks.seen, np.int64).reshape(-1, 4).T
        )
        times = np.array(self._callbacks.times, np.int64).reshape(-1, 2)
        applied = np.repeat(times[:, 0], times[:, 1])
        return Followed(
            self._since, client_ids, headers, partition_ids, transaction_ids, applied, processor
        )

    def _come(self) -> None:
        assert self._callbacks is not None
        cluster, tls = self._access
        self._since = time.monotonic_ns()
        options = self._workload.client_options
        self._client = waltz.open_client(cluster, self._callbacks, tls=tls, **options)


class CatchingUp(waltz.WaltzClientCallbacks):
    """Applies one transaction per call, from the marks on, until `count` of them came."""

    def __init__(self, marks: Mapping[int, int], count: int, workload: Workload) -> None:
        self._marks = marks
        self._left = count
        self._bodies = workload.bodies
        self.prefetch = workload.bodies and workload.prefetch
        self._lock = threading.Lock()
        self.done = threading.Event()

    def get_client_high_water_mark(self, partition_id: waltz.PartitionId) -> int:
        return self._marks[partition_id]

    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        if self._bodies:
            transaction.data  # noqa: B018 - fetched before, or by this
        with self._lock:  # partitions are called in parallel
            self._left -= 1
            if not self._left:
                self.done.set()


@dataclass(frozen=True, slots=True)
class ReadPart:
    """The part of one reading client in a round."""

    transactions: int
    seconds: float
    processor_seconds: float


def ranges(access: Access, workload: Workload) -> dict[int, tuple[int, int]]:
    """Return the range per partition that was filled last: its first and its end."""
    cluster, tls = access
    with waltz.open_reader(cluster, tls=tls) as log:
        ends = {each: log.high_water_mark(each) + 1 for each in range(log.partition_count)}
    share = workload.prefill // workload.partitions
    return {
        each: (end - share if each < workload.partitions else end, end)
        for each, end in ends.items()
    }


def catch_up(access: Access, workload: Workload) -> ReadPart:
    """Open a client that has applied nothing of the range, and wait until it has applied all of
    it."""
    cluster, tls = access
    found = ranges(access, workload)
    count = sum(end - first for first, end in found.values())
    marks = {each: first - 1 for each, (first, _) in found.items()}
    callbacks = CatchingUp(marks, count, workload)
    processor, start = time.process_time(), time.monotonic()
    with waltz.open_client(cluster, callbacks, tls=tls, **workload.client_options):
        if not callbacks.done.wait(COLLECT_SECONDS_MAX):
            raise OperationTimeoutError(
                f"the reading client did not reach the end of {count} transactions in"
                f" {COLLECT_SECONDS_MAX:.0f} s"
            )
        seconds = time.monotonic() - start
    return ReadPart(count, seconds, time.process_time() - processor)


def read_ranges(access: Access, workload: Workload) -> ReadPart:
    """Read the ranges, one partition after the other."""
    cluster, tls = access
    found = ranges(access, workload)
    take = _to_arrow() if workload.arrow else _count
    rows = 0
    processor, start = time.process_time(), time.monotonic()
    with waltz.open_reader(cluster, tls=tls) as log:
        for partition_id, (first, end) in found.items():
            if first < end:
                wants_data = None if workload.bodies else _no_data
                for run in log.read(partition_id, first, end, wants_data=wants_data):
                    rows += take(partition_id, run)
    seconds = time.monotonic() - start
    return ReadPart(rows, seconds, time.process_time() - processor)


def _no_data(headers: NDArray[np.int32]) -> NDArray[np.bool_]:
    return np.zeros(len(headers), np.bool_)


def _count(partition_id: int, columns: waltz.TransactionColumns) -> int:
    return len(columns.headers)


def _to_arrow() -> Callable[[int, waltz.TransactionColumns], int]:
    """Return a function that makes record batches as Spark's tasks do, and counts their rows.

    Raises ConfigurationError: pyarrow or pyspark is missing.
    """
    try:
        from waltz.spark.log_columns import log_schema
        from waltz.spark.schema import arrow_schema, record_batch
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is missing: run `pip install '.[spark]'` in a checkout of Waltz"
        ) from error
    schema: Any = arrow_schema(log_schema())

    def take(partition_id: int, columns: waltz.TransactionColumns) -> int:
        return len(record_batch(waltz.PartitionId(partition_id), columns, schema))

    return take
