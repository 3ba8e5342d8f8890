"""Clients that write: one process each, which gets commands from its parent, a round at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

import waltz
from waltz.bench.load import LOCK_NAME, Keys, Pace, payloads
from waltz.bench.workload import Workload
from waltz.errors import WaltzError

WARMING: Final = -1
"""The header of appends before a round; in a round it is the number of the transaction."""

FLUSH_SECONDS_MAX: Final = 120.0

Progress = Callable[[int], None]
"""Is called with the number of transactions sent since the last call."""


@dataclass(frozen=True, slots=True)
class ClientRound:
    """The transactions that one client wrote in a round: nanoseconds of the monotonic clock, an
    entry per call.

    `counts` are the transactions of each call, None for one each; headers count on from 0.
    """

    client_id: int
    start: int
    intended: NDArray[np.int64]
    applied: NDArray[np.int64]
    counts: NDArray[np.int64] | None
    refused: int
    processor_seconds: float

    @property
    def transactions(self) -> int:
        return len(self.applied) if self.counts is None else int(self.counts.sum())


class Tally:
    """Times of a round, by number of the call."""

    def __init__(self) -> None:
        self.intended: list[int] = []
        self.applied: list[int] = []
        self.refused = 0
        self.errors: list[Exception] = []

    def begin(self, due: int) -> int:
        """Return the number of a call that was due then."""
        self.intended.append(due)
        self.applied.append(0)
        return len(self.applied) - 1


class Timed(waltz.TransactionContext):
    """A context of a workload, which notes when it was applied here."""

    def __init__(
        self,
        tally: Tally,
        number: int,
        header: int,
        partition_id: int,
        data: bytes,
        write_locks: list[waltz.PartitionLocalLock],
        read_locks: list[waltz.PartitionLocalLock],
    ) -> None:
        super().__init__()
        self._tally = tally
        self._number = number
        self._header = header
        self._partition_id = partition_id
        self._data = data
        self._write_locks = write_locks
        self._read_locks = read_locks

    def partition_id(self, partition_count: int) -> int:
        return self._partition_id

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        builder.set_header(self._header)
        builder.set_data(self._data)
        if self._write_locks:
            builder.set_write_locks(self._write_locks)
        if self._read_locks:
            builder.set_read_locks(self._read_locks)
        return True

    def on_application(self) -> None:
        self._tally.applied[self._number] = time.monotonic_ns()

    def on_lock_failure(self, transaction_id: waltz.TransactionId) -> None:
        self._tally.refused += 1

    def on_exception(self, error: Exception) -> None:
        self._tally.errors.append(error)


class Writing(Protocol):
    """One way to write: makes calls until the pace ends, and waits for all of them."""

    def run(self, pace: Pace, tally: Tally, *, is_counted: bool) -> list[int] | None:
        """Return the transactions of each call, None for one each."""
        ...


class OneByOne:
    """Contexts, one after the other; the window is the client's own."""

    def __init__(
        self, client: waltz.WaltzClient, workload: Workload, number: int, progress: Progress
    ) -> None:
        random = np.random.default_rng(number)
        self._client = client
        self._workload = workload
        self._payloads = payloads(workload, random)
        self._keys = Keys(workload, number + 1, random)
        self._progress = progress

    def run(self, pace: Pace, tally: Tally, *, is_counted: bool) -> list[int] | None:
        workload, client = self._workload, self._client
        partitions, write_locks = workload.partitions, workload.write_locks
        waits = workload.verb == "append"
        while (due := pace.next()) is not None:
            number = tally.begin(due)
            locks = self._keys.locks()
            context = Timed(
                tally,
                number,
                number if is_counted else WARMING,
                number % partitions,
                self._payloads[number % len(self._payloads)],
                locks[:write_locks],
                locks[write_locks:],
            )
            if waits:
                self._append(context, tally, number)
            else:
                client.submit(context)
            self._progress(1)
        client.flush(FLUSH_SECONDS_MAX)
        return None

    def _append(self, context: Timed, tally: Tally, number: int) -> None:
        draft = waltz.TransactionBuilder()
        context.execute(draft)
        self._client.append(
            context.partition_id(self._workload.partitions),
            draft.data,
            header=draft.header,
            write_locks=draft.checked.get("write", ()),
            read_locks=draft.checked.get("read", ()),
        )
        tally.applied[number] = time.monotonic_ns()


class ManyAtATime:
    """Makes calls of `append_many`, from the number of threads in the window."""

    def __init__(
        self, client: waltz.WaltzClient, workload: Workload, number: int, progress: Progress
    ) -> None:
        self._client = client
        self._workload = workload
        random = np.random.default_rng(number)
        each = payloads(workload, random)
        self._data = (each * (workload.batch // len(each) + 1))[: workload.batch]
        self._keys = Keys(workload, number + 1, random)
        self._progress = progress
        self._lock = threading.Lock()

    def run(self, pace: Pace, tally: Tally, *, is_counted: bool) -> list[int] | None:
        def call_until_the_end() -> None:
            try:
                while self._call(pace, tally, is_counted=is_counted):
                    pass
            except Exception as error:
                tally.errors.append(error)

        threads = [
            threading.Thread(target=call_until_the_end, name=f"append-many-{number}")
            for number in range(self._workload.window)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [self._workload.batch] * len(tally.applied)

    def _call(self, pace: Pace, tally: Tally, *, is_counted: bool) -> bool:
        workload, batch = self._workload, self._workload.batch
        with self._lock:  # one at a time is due; the calls themselves go side by side
            due = pace.next()
            if due is None:
                return False
            number = tally.begin(due)
            hashes = waltz.lock_hashes(LOCK_NAME, self._keys.draw(batch))
        first = number * batch
        columns = waltz.RowColumns(
            headers=np.arange(first, first + batch, dtype=np.int32)
            if is_counted
            else np.full(batch, WARMING, np.int32)
        )
        written = workload.write_locks
        if written:
            columns["write_locks"] = hashes[:, :written]
        if workload.read_locks:
            columns["read_locks"] = hashes[:, written:]
        self._client.append_many(number % workload.partitions, self._data, **columns)
        tally.applied[number] = time.monotonic_ns()
        self._progress(batch)
        return True


def writing(
    client: waltz.WaltzClient, workload: Workload, number: int, progress: Progress
) -> Writing:
    """Return the way in which `workload` writes, for the client of that number."""
    kind = ManyAtATime if workload.verb == "append_many" else OneByOne
    return kind(client, workload, number, progress)


def write(
    ways: Writing,
    workload: Workload,
    client_id: int,
    start: int,
    seconds: float,
    *,
    is_counted: bool,
) -> ClientRound:
    """Write from `start`, in nanoseconds of the monotonic clock, for `seconds`.

    Raises WaltzError: one of the calls failed, or was not applied.
    """
    tally = Tally()
    rate = None
    if workload.rate is not None:
        per_call = workload.batch if workload.verb == "append_many" else 1
        rate = workload.rate / workload.clients / per_call
    time.sleep(max(0, start - time.monotonic_ns()) / 1e9)
    processor = time.process_time()
    counts = ways.run(Pace(start, start + int(seconds * 1e9), rate), tally, is_counted=is_counted)
    processor = time.process_time() - processor
    applied = np.array(tally.applied, np.int64)
    if tally.errors:
        raise WaltzError(f"{len(tally.errors)} calls failed; the first: {tally.errors[0]!r}")
    if not applied.all():
        raise WaltzError(
            f"{int((applied == 0).sum())} of {len(applied)} transactions were not applied"
        )
    return ClientRound(
        client_id,
        start,
        np.array(tally.intended, np.int64),
        applied,
        None if counts is None else np.array(counts, np.int64),
        tally.refused,
        processor,
    )


def prefill(client: waltz.WaltzClient, workload: Workload, progress: Progress) -> None:
    """Write `workload.prefill` transactions, in turn over its partitions."""
    data = payloads(workload, np.random.default_rng(0))
    per_partition, rest = divmod(workload.prefill, workload.partitions)
    for partition_id in range(workload.partitions):
        left = per_partition + (partition_id < rest)
        while left:
            count = min(left, workload.batch)
            client.append_many(partition_id, (data * (count // len(data) + 1))[:count])
            progress(count)
            left -= count
