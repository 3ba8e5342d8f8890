"""The simulated application of one client: it records everything it does, is told and is fed.

Owns its callbacks, its contexts and the state that it builds from the log. `workloads.py` decides
what its contexts write. Uses only the public names of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import (
    PartitionLocalLock,
    Transaction,
    TransactionBuilder,
    TransactionContext,
)
from waltz.errors import WaltzError
from waltz.sim.judges.history import ContextVerdict, FedRecord, History, LockRefusal
from waltz.sim.judges.payload import Accounts, EntryKind, Payload
from waltz.sim.judges.run_trace import RunTrace
from waltz.types import NOTHING, PartitionId, TransactionId


@dataclass(frozen=True, slots=True)
class Draft:
    """The content that a context wants to write, without what the context adds about itself."""

    kind: EntryKind
    write_locks: tuple[int, ...] = ()
    read_locks: tuple[int, ...] = ()
    append_locks: tuple[int, ...] = ()
    entries: tuple[tuple[int, int], ...] = ()


Compose = Callable[["Application", PartitionId], Draft | None]

LOCK_NAME: Final = "key"
"""The name of the locks that payloads list."""


class Application(WaltzClientCallbacks):
    """An application that outlives its client's processes, as a database would, with all that was
    applied."""

    prefetch = True

    def __init__(
        self, name: str, history: History, trace: RunTrace, now: Callable[[], float]
    ) -> None:
        self.name = name
        self.instance = ""
        """The instance that its client calls itself, if it has told a name."""
        self.history = history
        self._trace = trace
        self._now = now
        self.marks: dict[PartitionId, TransactionId] = {}
        self.values: dict[tuple[PartitionId, int], int] = {}
        self._accounts: dict[PartitionId, Accounts] = {}
        self.contexts_seen: set[int] = set()
        self.errors: list[str] = []
        self.has_applied = asyncio.Event()
        """Set whenever something was applied."""

    def accounts(self, partition_id: PartitionId) -> Accounts:
        return self._accounts.setdefault(partition_id, Accounts())

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId:
        return self.marks.get(partition_id, NOTHING)

    def applied_through(self, partition_id: PartitionId) -> TransactionId:
        """The last transaction in the state that its contexts see."""
        return self.marks.get(partition_id, NOTHING)

    def passed_through(self, partition_id: PartitionId) -> TransactionId:
        """The last transaction that its client takes for applied: others may have applied more."""
        return self.marks.get(partition_id, NOTHING)

    def value(self, partition_id: PartitionId, key: int) -> int:
        """Return the value that was counted."""
        return self.values.get((partition_id, key), 0)

    def apply_transaction(self, transaction: Transaction) -> None:
        self.take(
            transaction.partition_id,
            FedRecord(
                transaction.transaction_id,
                transaction.request_id,
                transaction.header,
                transaction.data,
            ),
        )

    def take(self, partition_id: PartitionId, fed: FedRecord) -> None:
        """Apply a transaction, in the order of the feed."""
        self.history.feed(self.name, partition_id).append(fed)
        self.history.show(partition_id, fed.transaction_id)
        self.marks[partition_id] = fed.transaction_id
        payload = Payload.decode(fed.data)
        if payload is not None:
            self.contexts_seen.add(payload.context)
            if payload.kind is EntryKind.COUNT:
                self.values.update(((partition_id, key), value) for key, value in payload.entries)
            self.accounts(partition_id).apply(payload)
        self.note_fed(partition_id, fed.transaction_id)

    def uncaught_exception(
        self, partition_id: PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None:
        self.errors.append(f"{self.name} in partition {partition_id}: {error!r}")

    def note_fed(self, partition_id: PartitionId, transaction_id: TransactionId) -> None:
        self.note("fed", self.name, partition_id, transaction_id)
        self.has_applied.set()

    def note(self, what: str, *facts: object) -> None:
        self._trace.note(self._now(), what, *facts)


class Intent(TransactionContext):
    """One transaction of a workload; records every attempt and how it ends."""

    def __init__(
        self,
        application: Application,
        partition_id: PartitionId,
        compose: Compose,
        *,
        header: int,
        padding: bytes,
        timeout_seconds: float | None = None,
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self._application = application
        self._partition_id = partition_id
        self._compose = compose
        self._header = header
        self._padding = padding
        self._mark = self._passed = NOTHING
        self.number = application.history.submit(
            application.name, partition_id, application.instance
        )
        self.submission = application.history.submissions[self.number]
        self.ended = asyncio.Event()
        application.note("submit", application.name, self.number)

    def partition_id(self, partition_count: int) -> int:
        return self._partition_id

    def execute(self, builder: TransactionBuilder) -> bool:
        draft = self._compose(self._application, self._partition_id)
        self._application.note("execute", self.number, draft is not None)
        if draft is None:
            return False
        self._mark = self._application.applied_through(self._partition_id)
        self._passed = self._application.passed_through(self._partition_id)
        data = Payload(
            self.number,
            len(self.submission.written) + 1,
            draft.kind,
            self._mark,
            draft.write_locks,
            draft.read_locks,
            draft.append_locks,
            draft.entries,
            self._padding,
        ).encode()
        self.submission.written.append((self._header, data))
        self.submission.based_on.append(dict(self._application.history.shown))
        builder.set_header(self._header)
        builder.set_data(data)
        builder.set_write_locks(PartitionLocalLock(LOCK_NAME, key) for key in draft.write_locks)
        builder.set_read_locks(PartitionLocalLock(LOCK_NAME, key) for key in draft.read_locks)
        builder.set_append_locks(PartitionLocalLock(LOCK_NAME, key) for key in draft.append_locks)
        return True

    def on_completion(self, result: bool) -> None:
        self._end(ContextVerdict.COMMITTED if result else ContextVerdict.REFUSED)

    def on_lock_failure(self, transaction_id: TransactionId) -> None:
        attempt = len(self.submission.written)
        self.submission.refusals.append(
            LockRefusal(self._passed, transaction_id, self.request_id, attempt)
        )
        self._application.history.show(self._partition_id, transaction_id)
        self._application.note("refused", self.number, transaction_id)

    def on_expiration(self) -> None:
        self._end(ContextVerdict.EXPIRED)

    def on_exception(self, error: Exception) -> None:
        may_be_written = not isinstance(error, WaltzError) or error.may_be_written
        self._end(
            ContextVerdict.FAILED if may_be_written else ContextVerdict.UNWRITTEN, repr(error)
        )

    def _end(self, verdict: ContextVerdict, text: str = "") -> None:
        self._application.note("end", self.number, verdict.name, text)
        self._application.history.end(self.number, verdict, text)
        self.ended.set()


async def submit(client: AsyncWaltzClient, intent: Intent) -> None:
    """Submit `intent` and return once it has ended, however."""
    with suppress(WaltzError):  # the context has the error
        await client.submit(intent)
    await intent.ended.wait()
