"""Workloads: what clients do in a run, and how they write down what they see.

Owns the simulated application: its callbacks, its contexts and the order of its work, all drawn
from the seed. Uses only the public names of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from waltz.client.callbacks import WaltzClientCallbacks
from waltz.client.transaction import (
    PartitionLocalLock,
    Transaction,
    TransactionBuilder,
    TransactionContext,
)
from waltz.sim.history import Fed, History, Payload
from waltz.sim.trace import Trace
from waltz.types import NOTHING, PartitionId, TransactionId

KEYS: Final = 3
"""Locks per partition: few, so that clients meet."""

PADDING_BYTES: Final = (0, 10, 100, 1_000, 20_000)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one client does: how many transactions, and how many of them at a time."""

    transactions: int
    concurrency: int
    think_seconds_max: float
    counts: bool
    """Whether contexts count a key up from what they have applied, under a write lock."""


Workload = Callable[[Random], tuple[Plan, ...]]
"""Draws the plans of a run, one per client."""


def append(random: Random) -> tuple[Plan, ...]:
    """Clients append data of all sizes, with and without locks."""
    return _draw_plans(random, counts=False)


def lock_contention(random: Random) -> tuple[Plan, ...]:
    """Clients count a few keys up from what they have seen: a lost update would show."""
    return _draw_plans(random, counts=True)


def _draw_plans(random: Random, *, counts: bool) -> tuple[Plan, ...]:
    clients = random.randint(1, 3)
    return tuple(
        Plan(
            transactions=random.randint(10, 60) // clients,
            concurrency=random.choice((1, 4, 10)),
            think_seconds_max=random.choice((0.0, 0.001, 0.1)),
            counts=counts,
        )
        for _ in range(clients)
    )


WORKLOADS: Final[dict[str, Workload]] = {"append": append, "lock_contention": lock_contention}


class Application(WaltzClientCallbacks):
    """The simulated application of one client: it writes down what it is given."""

    prefetch = True

    def __init__(self, name: str, history: History, trace: Trace, now: Callable[[], float]) -> None:
        self.name = name
        self.history = history
        self._trace = trace
        self._now = now
        self.marks: dict[PartitionId, TransactionId] = {}
        self.values: dict[tuple[PartitionId, int], int] = {}
        self.contexts_seen: set[int] = set()
        self.errors: list[str] = []

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        return self.marks.get(partition_id, NOTHING)

    def apply_transaction(self, transaction: Transaction) -> None:
        partition_id, transaction_id = transaction.partition_id, transaction.transaction_id
        data = transaction.data
        self.history.feed(self.name, partition_id).append(
            Fed(transaction_id, transaction.request_id, transaction.header, data)
        )
        self.marks[partition_id] = transaction_id
        payload = Payload.decode(data)
        if payload is not None:
            self.values[partition_id, payload.key] = payload.value
            self.contexts_seen.add(payload.context)
        self.note("fed", self.name, partition_id, transaction_id)

    def uncaught_exception(
        self, partition_id: PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None:
        self.errors.append(f"{self.name} in partition {partition_id}: {error!r}")

    def note(self, what: str, *facts: object) -> None:
        self._trace.note(self._now(), what, *facts)


class Intent(TransactionContext):
    """One transaction of a workload; writes down every attempt and how it ends."""

    def __init__(
        self,
        application: Application,
        partition_id: PartitionId,
        *,
        key: int,
        counts: bool,
        locked: bool,
        header: int,
        padding: bytes,
    ) -> None:
        self._application = application
        self._history = application.history
        self._partition_id = partition_id
        self._key = key
        self._counts = counts
        self._locked = locked
        self._header = header
        self._padding = padding
        self.number = self._history.submit(application.name, partition_id)
        self.ended = asyncio.Event()
        application.note("submit", application.name, self.number)

    def partition_id(self, partition_count: int) -> int:
        return self._partition_id

    def execute(self, builder: TransactionBuilder) -> bool:
        value = 0
        if self._counts:
            value = self._application.values.get((self._partition_id, self._key), 0) + 1
        written = self._history.submissions[self.number].written
        data = Payload(self.number, len(written) + 1, self._key, value, self._padding).encode()
        written.append((self._header, data))
        builder.set_header(self._header)
        builder.set_data(data)
        if self._locked:
            builder.set_write_locks([PartitionLocalLock("key", self._key)])
        self._application.note("execute", self.number, len(written))
        return True

    def on_completion(self, result: bool) -> None:
        self._end(result)

    def on_expiration(self) -> None:
        self._end("expired")

    def on_exception(self, error: Exception) -> None:
        self._end(repr(error))

    def _end(self, outcome: bool | str) -> None:
        self._application.note("end", self.number, outcome)
        self._history.end(self.number, outcome)
        self.ended.set()


def draw_intent(
    random: Random, application: Application, partition_count: int, *, counts: bool
) -> Intent:
    return Intent(
        application,
        PartitionId(random.randrange(partition_count)),
        key=random.randrange(KEYS),
        counts=counts,
        locked=counts or random.random() < 0.7,
        header=random.choice((0, random.randrange(-(2**31), 2**31))),
        padding=random.randbytes(random.randrange(random.choice(PADDING_BYTES) + 1)),
    )
