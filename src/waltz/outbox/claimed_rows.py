"""The knowledge of a relay about its claim: which of the claimed rows are in the log already.

Owns the rules by which a row gets into the log once: each has a lock of its own, and a relay is
named in the claim before it appends. Called by the client's threads: per partition by one at a
time. Never waits, but for the database when a client appears in the log that was never seen before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final
from uuid import UUID

from waltz import (
    ClientId,
    PartitionId,
    Transaction,
    TransactionBuilder,
    TransactionContext,
    TransactionId,
    WaltzClientCallbacks,
)
from waltz.errors import CorruptionError
from waltz.outbox.claim import RelayState
from waltz.outbox.outbox_row import OutboxRow, content_digest, row_lock

STRANGERS_MAX: Final = 10_000
"""Clients of other applications that are known to be none of a relay, twice at most. Of one that
was forgotten the database is asked again."""

ReadClients = Callable[[], Collection[ClientId] | None]
"""Returns the clients that the claim names now; None: another relay has taken over. Raises what the
database raises."""


class ClaimedRows(WaltzClientCallbacks):
    """Follows the log for a relay."""

    def __init__(self, read_clients: ReadClients, stop: Callable[[Exception | None], None]) -> None:
        """`stop` is called once nothing more may be appended: with an error, or with None when
        another relay has taken over."""
        self._read_clients = read_clients
        self._stop = stop
        self.client_id = ClientId(0)
        self.is_stopped = False
        self._state: RelayState | None = None
        self._histories: dict[PartitionId, UUID] = {}
        self._others: frozenset[ClientId] = frozenset()
        self._strangers: set[ClientId] = set()
        self._older_strangers: set[ClientId] = set()
        self._waiting: dict[tuple[PartitionId, bytes], deque[int]] = {}
        self._logged: set[int] = set()

    def begin(self, client_id: ClientId, state: RelayState) -> None:
        """Take a claim. Nothing of it may be followed or appended before."""
        self.client_id = client_id
        self._logged.clear()
        waiting: dict[tuple[PartitionId, bytes], deque[int]] = {}
        for each in state.claim:
            waiting.setdefault((each.partition_id, each.digest), deque()).append(each.row_id)
        self._waiting = waiting
        self._others = frozenset(state.clients) - {client_id}
        self._histories = dict(state.histories)
        self._state = state

    def is_logged(self, row_id: int) -> bool:
        """Return whether another relay's append of the row is in the log, as far as that was
        followed."""
        return row_id in self._logged

    def stop(self, error: Exception | None) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            self._stop(error)

    # Called by the client

    def get_client_high_water_mark(self, partition_id: PartitionId) -> TransactionId | None:
        """Return the mark before the claim; None for a partition that nothing was appended to."""
        return None if self._state is None else self._state.marks.get(partition_id)

    def get_client_history(self, partition_id: PartitionId) -> UUID | None:
        return self._histories.get(partition_id)

    def keep_client_history(
        self, partition_id: PartitionId, history: UUID, before: UUID | None
    ) -> None:
        """Take the history; the next claim keeps it."""
        self._histories[partition_id] = history

    def choose_prefetch(self, transactions: Sequence[Transaction]) -> list[Transaction]:
        """Return the rows of other relays: only their data is read."""
        return [each for each in transactions if self._is_of_relay(each.request_id.client_id)]

    def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
        # What this relay appends itself its contexts are told. The database is asked for all before
        # the first is found: after an error all of them come again.
        for each in self.choose_prefetch(transactions):
            self._find(each)

    def _find(self, transaction: Transaction) -> None:
        place = transaction.partition_id, content_digest(transaction.header, transaction.data)
        waiting = self._waiting.get(place)
        if waiting:
            self._logged.add(waiting.popleft())
            return
        self.stop(
            CorruptionError(
                f"transaction {transaction.transaction_id} of partition {transaction.partition_id}"
                " was appended by a relay of this outbox, and is none of the rows that the database"
                " says were claimed: the database was set back, or a claimed row was changed. Rows"
                " that are in the log may be in the outbox again. Nothing more was appended:"
                " compare, delete those rows, and delete the relay's row, with which it starts anew"
            )
        )

    def _is_of_relay(self, client_id: ClientId) -> bool:
        """Return whether another relay of this claim has this client."""
        if client_id == self.client_id or self._is_stranger(client_id):
            return False
        if client_id in self._others:
            return True
        # A relay is named before it appends, so one that is not named now has nothing in the log
        # that was followed until now, and never will have under this claim.
        clients = self._read_clients()
        if clients is None:
            self.stop(None)
        elif client_id in clients:
            return True
        if len(self._strangers) >= STRANGERS_MAX:
            self._older_strangers, self._strangers = self._strangers, set()
        self._strangers.add(client_id)
        return False

    def _is_stranger(self, client_id: ClientId) -> bool:
        return client_id in self._strangers or client_id in self._older_strangers


class RowContext(TransactionContext):
    """A row on its way into the log."""

    def __init__(
        self,
        row: OutboxRow,
        state: RelayState,
        rows: ClaimedRows,
        tell: Callable[[RowOutcome], None],
    ) -> None:
        self.row = row
        self._lock = row_lock(state.outbox_id, row.row_id)
        self._rows = rows
        self._tell = tell
        self._refusal: str | None = None

    def partition_id(self, partition_count: int) -> int:
        return self.row.partition_id

    def execute(self, builder: TransactionBuilder) -> bool:
        if self._rows.is_stopped or self._rows.is_logged(self.row.row_id) or self._refusal:
            return False
        row = self.row
        builder.set_header(row.header)
        builder.set_data(row.data)
        builder.set_write_locks((*row.write_locks, self._lock))
        builder.set_read_locks(row.read_locks)
        builder.set_append_locks(row.append_locks)
        if row.mark is not None:
            builder.set_locks_as_of(row.mark)
        return True

    def on_lock_failure(self, transaction_id: TransactionId) -> None:
        mark = self.row.mark
        # With an older mark than the row's it was not compared with what the row asks for.
        if mark is not None and self.executed_at >= mark:
            lock = self.refused_lock
            name = "a lock" if lock is None else f"lock {_printable(lock.name)} {lock.id}"
            if lock == self._lock:
                name = "the lock of the row itself, by which it gets into the log once,"
            self._refusal = (
                f"{name} was taken after transaction {mark} of partition {self.row.partition_id},"
                f" by transaction {transaction_id} or before"
            )

    def on_completion(self, result: bool) -> None:
        if result:
            return  # `on_application` follows: then the client's mark has passed the row
        if self._rows.is_logged(self.row.row_id):
            self._tell(RowOutcome(self.row, None))
        elif self._refusal is not None:
            self._tell(RowOutcome(self.row, self._refusal))

    def on_application(self) -> None:
        self._tell(RowOutcome(self.row, None))

    def on_exception(self, error: Exception) -> None:
        self._rows.stop(error)


class RowOutcome:
    """The end of a row: it is in the log, or `refusal` says why it was refused."""

    __slots__ = ("refusal", "row")

    def __init__(self, row: OutboxRow, refusal: str | None) -> None:
        self.row = row
        self.refusal = refusal


def _printable(name: str) -> str:
    """Return a name as it may stand in the reason of a parked row: not every database keeps every
    character, and a row whose reason is not kept would hold up all others."""
    return name if name.isprintable() else ascii(name)
