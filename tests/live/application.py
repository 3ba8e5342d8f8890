"""The application of every client whose cluster suffers: it counts keys up and writes all down.

Owns the contexts and the state that they are based on. Knows nothing of when contexts are
submitted, and through which kind of client.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import waltz
from tests.live.journal import Event, Journal, Step, encode_request, verdict_number
from waltz.sim.judges.history import ContextVerdict, FedRecord
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.types import NOTHING


@dataclass(frozen=True, slots=True)
class Load:
    """The mix of contexts; shares are of all contexts."""

    keys: int
    """Locks per partition."""
    plain: float
    """Share of plain appends: no callback runs again when a lock is refused."""
    counting: float
    """Share of contexts that count a key up, among those that are no plain appends."""
    hasty: float
    hasty_seconds: tuple[float, float]
    """Share of contexts that have little time, and how much time."""
    padding: Sequence[int]
    """One of these is drawn: the most bytes that are added to a transaction."""


class Progress:
    """Counts of many threads."""

    def __init__(self, partitions: int) -> None:
        self._lock = threading.Lock()
        self._counts = {"submitted": 0, "ended": 0, "committed": 0, "refusals": 0}
        self._begun_of_committed = [-1.0] * partitions

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def note_commit(self, partition: int, begun: float) -> None:
        with self._lock:
            newest = max(begun, self._begun_of_committed[partition])
            self._begun_of_committed[partition] = newest

    def report(self) -> dict[str, Any]:
        with self._lock:
            return {**self._counts, "begun_of_committed": [*self._begun_of_committed]}


class Application(waltz.WaltzClientCallbacks):
    """Counts keys up, and writes down everything that it is handed."""

    prefetch = True

    def __init__(self, journals: Sequence[Journal], load: Load, *, forgetful: bool = False) -> None:
        """`forgetful`: one transaction is not applied, as a bug would have it."""
        self.journals = journals
        self.load = load
        self.progress = Progress(len(journals))
        self.marks = [NOTHING] * len(journals)
        self.values: list[dict[int, int]] = [{} for _ in journals]
        self.complaints: list[str] = []
        """Transactions out of order, and exceptions of callbacks: there must be none."""
        self._forgetful = forgetful

    def get_client_high_water_mark(self, partition_id: waltz.PartitionId) -> waltz.TransactionId:
        return self.marks[partition_id]

    def apply_transactions(self, transactions: Sequence[waltz.Transaction]) -> None:
        partition_id = transactions[0].partition_id
        values = self.values[partition_id]
        records = []
        for place, each in enumerate(transactions, self.marks[partition_id] + 1):
            data = each.data
            records.append(FedRecord(each.transaction_id, each.request_id, each.header, data))
            if each.transaction_id != place:
                self._complain(f"partition {partition_id}: {each.transaction_id} for {place}")
            payload = Payload.decode(data)
            if payload is not None and payload.kind is EntryKind.COUNT:
                values.update(payload.entries)
        self.marks[partition_id] = transactions[-1].transaction_id
        if self._forgetful:
            self._forgetful = False
            records.pop()
        self.journals[partition_id].hand_over(records)

    def uncaught_exception(
        self,
        partition_id: waltz.PartitionId,
        transaction_id: waltz.TransactionId,
        error: Exception,
    ) -> None:
        self._complain(f"partition {partition_id}, transaction {transaction_id}: {error!r}")

    def _complain(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        self.complaints.append(text)


class Intent(waltz.TransactionContext):
    """One transaction; writes down every attempt and how it ends. Any thread."""

    def __init__(self, application: Application, number: int, partition: int, random: Random):
        super().__init__()
        self._application = application
        self._journal = application.journals[partition]
        self._attempts = 0
        self._begun = 0.0
        self.number = number
        self.partition = partition
        self.requests: list[tuple[waltz.RequestId, int]] = []
        """Per attempt its request, and the transaction behind which it may be in the log."""
        self.ended = threading.Event()
        load = application.load
        self.is_plain = random.random() < load.plain
        is_counting = not self.is_plain and random.random() < load.counting
        self._kind = EntryKind.COUNT if is_counting else EntryKind.NOTE
        self._key = random.randrange(load.keys)
        self._other = None if self.is_plain else random.choice((None, random.randrange(load.keys)))
        self._header = random.randrange(-(2**31), 2**31)
        self._padding = random.randbytes(random.randrange(1 + random.choice(load.padding)))
        if random.random() < load.hasty:
            self.timeout_seconds = random.uniform(*load.hasty_seconds)

    def begin(self) -> None:
        """Note that the context is about to be submitted."""
        self._begun = time.monotonic()
        self._note(Step.SUBMITTED)
        self._application.progress.add(submitted=1)

    def submit(self, client: waltz.WaltzClient) -> None:
        """Append the data, and return once that has ended, or submit the context."""
        with suppress(waltz.WaltzError):  # a context has been told
            if self.is_plain:
                with self._ending():
                    self._place(client.append(self.partition, self._next_data(), **self._options))
            else:
                client.submit(self)

    async def submit_async(self, client: waltz.AsyncWaltzClient) -> None:
        with suppress(waltz.WaltzError):
            if self.is_plain:
                with self._ending():
                    appending = client.append(self.partition, self._next_data(), **self._options)
                    self._place(await appending)
            else:
                await client.submit(self)

    def partition_id(self, partition_count: int) -> int:
        return self.partition

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        if self.request_id is not None:
            self.requests.append((self.request_id, int(self.executed_at)))
        builder.set_header(self._header)
        builder.set_data(self._next_data())
        if self._kind is EntryKind.COUNT:
            builder.set_write_locks([waltz.PartitionLocalLock("key", self._key)])
        if self._reads:
            builder.set_read_locks([waltz.PartitionLocalLock("key", each) for each in self._reads])
        return True

    def on_lock_failure(self, transaction_id: waltz.TransactionId) -> None:
        self._application.progress.add(refusals=1)

    def on_completion(self, result: bool) -> None:
        self._end(ContextVerdict.COMMITTED if result else ContextVerdict.REFUSED)

    def on_expiration(self) -> None:
        self._end(ContextVerdict.EXPIRED)

    def on_exception(self, error: Exception) -> None:
        print(f"context {self.number}: {error!r}", file=sys.stderr, flush=True)
        self._end(verdict_of(error))

    def all_requests(self) -> list[tuple[waltz.RequestId, int]]:
        """Return the requests of all attempts, and write them down."""
        last = [] if self.request_id is None else [(self.request_id, int(self.executed_at))]
        found = [*self.requests, *last]
        for request_id, after in found:
            self._note(Step.REQUESTED, data=encode_request(request_id, after))
        return found

    @property
    def _options(self) -> dict[str, Any]:
        locks = [waltz.PartitionLocalLock("key", self._key)]
        timeout = self.timeout_seconds
        return {"header": self._header, "write_locks": locks, "timeout_seconds": timeout}

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End a plain append that fails."""
        try:
            yield
        except waltz.WaltzError as error:
            self._end(verdict_of(error))

    @property
    def _reads(self) -> tuple[int, ...]:
        is_free = self._other is None or (
            self._kind is EntryKind.COUNT and self._other == self._key
        )
        return () if is_free or self._other is None else (self._other,)

    def _next_data(self) -> bytes:
        """Return the data of the next attempt, and write it down."""
        application, key = self._application, self._key
        self._attempts += 1
        mark = application.marks[self.partition]
        counts = self._kind is EntryKind.COUNT
        value = application.values[self.partition].get(key, 0) + 1
        data = Payload(
            self.number,
            self._attempts,
            self._kind,
            mark,
            write_locks=(key,) if counts else (),
            read_locks=self._reads,
            entries=((key, value),) if counts else (),
            padding=self._padding,
        ).encode()
        self._note(Step.ATTEMPTED, self._header, data)
        return data

    def _note(self, step: Step, detail: int = 0, data: bytes = b"") -> None:
        self._journal.note(Event(step, self.number, time.monotonic_ns(), detail, data))

    def _place(self, transaction_id: waltz.TransactionId) -> None:
        self._note(Step.PLACED, data=b"%d" % transaction_id)
        self._end(ContextVerdict.COMMITTED)

    def _end(self, verdict: ContextVerdict) -> None:
        self._note(Step.ENDED, verdict_number(verdict))
        is_committed = verdict is ContextVerdict.COMMITTED
        if is_committed:
            self._application.progress.note_commit(self.partition, self._begun)
        self._application.progress.add(ended=1, committed=is_committed)
        self.ended.set()


def verdict_of(error: Exception) -> ContextVerdict:
    if isinstance(error, waltz.OperationTimeoutError):
        return ContextVerdict.EXPIRED
    may_be_written = not isinstance(error, waltz.WaltzError) or error.may_be_written
    return ContextVerdict.FAILED if may_be_written else ContextVerdict.UNWRITTEN
