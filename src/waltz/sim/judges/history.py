"""The actions and observations of the log's users in one run: submits, endings, refusals, fed
transactions.

Owns the record that the checkers judge. Knows nothing of how the log works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from waltz.types import NOTHING, PartitionId, RequestId, TransactionId


class FedRecord(NamedTuple):
    """One transaction as a client, or a disk, showed it."""

    transaction_id: TransactionId
    request_id: RequestId
    header: int
    data: bytes


class ContextVerdict(Enum):
    """The end of a context, as its owner knows it."""

    COMMITTED = "committed"
    REFUSED = "not in the log, and never will be"
    UNWRITTEN = "failed, and nothing was written"
    FAILED = "failed; it may be in the log"
    EXPIRED = "given up in time; it may be in the log"
    LOST = "its process died; it may be in the log"

    @property
    def denies(self) -> bool:
        """Return whether the verdict is that the transaction is not in the log."""
        return self in (ContextVerdict.REFUSED, ContextVerdict.UNWRITTEN)


class Ending(NamedTuple):
    verdict: ContextVerdict
    moment: int
    """A number that grows with everything that is written down."""
    text: str = ""


class LockRefusal(NamedTuple):
    """A context was told that a lock was newer than what its attempt was based on."""

    mark: TransactionId
    """The mark of the client when the attempt was executed."""
    estimate: TransactionId
    """The transaction that the server named as holding the lock."""
    request_id: RequestId | None = None
    """The request ID of the attempt."""
    attempt: int = 0
    """Counted from 1."""


class OutcomeTold(NamedTuple):
    """The answer to a client's question about an append."""

    client: str
    request_id: RequestId
    transaction_id: TransactionId | None
    """None: it is not in the log and never will be."""


class WaitTold(NamedTuple):
    """A call of `wait_until_applied` that has returned."""

    client: str
    told: Mapping[PartitionId, TransactionId]
    """The marks that it returned."""
    before: Mapping[PartitionId, TransactionId]
    """The last transactions that the application had applied when the call began."""
    after: Mapping[PartitionId, TransactionId]
    """The last transactions that the application had applied when the call returned."""


class EndlessWait(NamedTuple):
    """A call that was given up in peace."""

    client: str
    waited_for: str


@dataclass(slots=True)
class SubmittedContext:
    """One transaction context and its whole course."""

    client: str
    partition_id: PartitionId
    moment: int
    """The moment of the submit; see `Ending`."""
    instance: str = ""
    """The instance that its client has called itself; empty: it has told none."""
    written: list[tuple[int, bytes]] = field(default_factory=list)
    """Header and data of each attempt, the first one first."""
    based_on: list[Mapping[PartitionId, TransactionId]] = field(default_factory=list)
    """The last transactions that had been shown to anybody, before each attempt was executed."""
    endings: list[Ending] = field(default_factory=list)
    refusals: list[LockRefusal] = field(default_factory=list)

    def has_ended(self, *verdicts: ContextVerdict) -> bool:
        """Return whether the context ended with one of `verdicts`."""
        return any(ending.verdict in verdicts for ending in self.endings)


@dataclass(slots=True)
class History:
    """Everything that users saw."""

    submissions: dict[int, SubmittedContext] = field(default_factory=dict)
    """By context, in order of submission."""
    feeds: dict[str, dict[PartitionId, list[FedRecord]]] = field(default_factory=dict)
    """Per follower and partition, the fed transactions in order."""
    outcomes: list[OutcomeTold] = field(default_factory=list)
    waits: list[WaitTold] = field(default_factory=list)
    endless: list[EndlessWait] = field(default_factory=list)
    shown: dict[PartitionId, TransactionId] = field(default_factory=dict)
    """The last transaction of each partition that some user was shown: by its feed, an outcome, a
    mark or a refused lock."""
    moment: int = 0
    ended_count: int = 0
    on_end: Callable[[], None] | None = None
    """Called after every ending."""
    _open: dict[str, dict[int, None]] = field(default_factory=dict)

    def submit(self, client: str, partition_id: PartitionId, instance: str = "") -> int:
        """Return the number of a new context."""
        context = len(self.submissions) + 1
        self.moment += 1
        self.submissions[context] = SubmittedContext(client, partition_id, self.moment, instance)
        self._open.setdefault(client, {})[context] = None
        return context

    def feed(self, client: str, partition_id: PartitionId) -> list[FedRecord]:
        return self.feeds.setdefault(client, {}).setdefault(partition_id, [])

    def show(self, partition_id: PartitionId, transaction_id: TransactionId) -> None:
        """A user learns that the log has come as far as `transaction_id`."""
        if transaction_id > self.shown.get(partition_id, NOTHING):
            self.shown[partition_id] = transaction_id

    def end(self, context: int, verdict: ContextVerdict, text: str = "") -> None:
        submission = self.submissions[context]
        self.moment += 1
        submission.endings.append(Ending(verdict, self.moment, text))
        self._open[submission.client].pop(context, None)
        self.ended_count += 1
        if self.on_end is not None:
            self.on_end()

    def open_count(self, client: str) -> int:
        """Return how many contexts of the client have not ended."""
        return len(self._open.get(client, ()))

    def abandon(self, client: str, verdict: ContextVerdict) -> list[int]:
        """End all open contexts of a client that will not be told more; return those contexts."""
        contexts = list(self._open.get(client, ()))
        for context in contexts:
            self.end(context, verdict)
        return contexts
