"""The figures of a client: a snapshot that its application can read, and their names and units.

Owns both. Pure: a client fills the snapshot in; `waltz.metrics` shows it to Prometheus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from waltz.client.transaction import PartitionLocalLock
from waltz.figures import Durations, Family, Kind, Label, Metric, counter, gauge
from waltz.types import PartitionId, TransactionId

REFUSAL_NAMES_MAX: Final = 50
"""Names of locks whose refusals are counted apart; those of further names are counted together."""

OTHER_LOCKS: Final = "(other)"
UNKNOWN_LOCK: Final = "(unknown)"


class Refusals:
    """Appends that were refused for a lock, by the name of the lock."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, lock: PartitionLocalLock | None) -> None:
        """Count an append that was refused for `lock`; None: the server has not said which."""
        name = UNKNOWN_LOCK if lock is None else lock.name
        if name not in self.counts and len(self.counts) >= REFUSAL_NAMES_MAX:
            name = OTHER_LOCKS
        self.counts[name] = self.counts.get(name, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPartitionMetrics:
    """A client's part in one partition; its counts begin when the client begins to follow it.

    `applied_mark` is the last transaction that was applied here, and `known_mark` the last one that
    the client has heard of, by its feed or as an answer: the log may go on behind it. Both are None
    until the application has said its mark.
    """

    partition_id: PartitionId
    is_mounted: bool
    """Whether the partition has a server that feeds this client."""
    is_denied: bool
    """Whether a server's policy denies the partition to this client."""
    applied_mark: TransactionId | None
    known_mark: TransactionId | None
    applied: int
    """Transactions that were applied here."""
    pending: int
    """Appends that were sent and have no outcome yet."""
    rows_refused: int
    """Rows of `append_many` that were refused for a lock; they are sent again."""
    parked: int
    blocked_seconds: float | None
    """Time since the next transaction could first not be applied; None: nothing is in the way."""

    @property
    def lag(self) -> int | None:
        """The number of transactions that are known to be in the log and not applied here, a lower
        bound of those that are."""
        if self.applied_mark is None or self.known_mark is None:
            return None
        return self.known_mark - self.applied_mark


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetrics:
    """The figures of a client at one moment; its counts begin with the client.

    `refusals` counts by the name of the lock, for at most REFUSAL_NAMES_MAX names and `(other)`;
    `(unknown)` are those of a server whose version does not say which lock it was.
    """

    connected_servers: int
    connections_opened: int
    connections_restored: int
    """Connections that broke and were resumed where they broke."""
    connections_lost: int
    unfinished: int
    """Contexts that were submitted and have not ended."""
    retries: int
    """Contexts that were executed and sent again."""
    refusals: Mapping[str, int]
    append_seconds: Durations
    """From the submit of a context until it was told that it is in the log, and applied; of each
    batch of contexts that end together the first one counts."""
    partitions: tuple[ClientPartitionMetrics, ...]


CLIENT_METRICS: Final[Sequence[Metric[ClientMetrics]]] = (
    gauge("connected_servers", "Servers with a connection.", lambda c: c.connected_servers),
    counter("connections_opened", "Connections opened.", lambda c: c.connections_opened),
    counter(
        "connections_restored",
        "Connections that broke and were resumed where they broke.",
        lambda c: c.connections_restored,
    ),
    counter("connections_lost", "Connections that have ended.", lambda c: c.connections_lost),
    gauge(
        "unfinished_contexts",
        "Contexts that were submitted and have not ended.",
        lambda c: c.unfinished,
    ),
    counter("retries", "Contexts that were executed and sent again.", lambda c: c.retries),
)

CLIENT_FAMILIES: Final[Sequence[Family[ClientMetrics]]] = (
    Family(
        "refusals",
        "Appends that were refused for a lock.",
        Kind.COUNTER,
        (
            Label(
                "lock",
                f"the lock's name, at most {REFUSAL_NAMES_MAX} of them; then {OTHER_LOCKS};"
                f" {UNKNOWN_LOCK} if the server does not say it",
            ),
        ),
        lambda c: (((name,), count) for name, count in c.refusals.items()),
        absent="no lock of that name was refused",
    ),
    Family(
        "append_seconds",
        "Time from the submit of a context until it was told that it is in the log, and applied;"
        " the first one of each batch of contexts that end together.",
        Kind.HISTOGRAM,
        (),
        lambda c: [((), c.append_seconds)],
    ),
)

CLIENT_PARTITION_METRICS: Final[Sequence[Metric[ClientPartitionMetrics]]] = (
    gauge(
        "mounted",
        "1 while the partition has a server that feeds this client.",
        lambda p: p.is_mounted,
    ),
    gauge(
        "denied",
        "1 while a server's policy denies the partition to this client.",
        lambda p: p.is_denied,
    ),
    gauge(
        "applied_transaction_id",
        "The last transaction that was applied here; -1 if none.",
        lambda p: p.applied_mark,
        absent="the application has not said its mark yet",
    ),
    gauge(
        "lag_transactions",
        "Transactions that this client has heard of and not applied: a lower bound, for the log may"
        " go on behind what the feed has brought.",
        lambda p: p.lag,
        absent="the application has not said its mark yet",
    ),
    counter("applied", "Transactions that were applied here.", lambda p: p.applied),
    gauge(
        "pending_appends",
        "Appends that were sent and have no outcome yet.",
        lambda p: p.pending,
    ),
    counter(
        "rows_refused",
        "Rows of `append_many` that were refused for a lock; they are sent again.",
        lambda p: p.rows_refused,
    ),
    counter("parked", "Transactions that this client has parked.", lambda p: p.parked),
    gauge(
        "blocked_seconds",
        "Time since the next transaction could first not be applied.",
        lambda p: p.blocked_seconds,
        absent="nothing is in the way",
    ),
)
