"""The lag of each consumer of a server, for metrics.

Owns which consumers are told of by name, and the last mark that each has told. Must not know logs:
it is given the lag of a mark. A consumer stays for a day once its clients have left, for that is
when its lag matters most; the one that left first makes room for a new one. Always: names and
places, which are a consumer's partitions, are bounded; what is told of was told by a client of that
name that had mounted the partition, and was a place in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from waltz.figures import Family, Kind, Label, Metric, Sample, gauge
from waltz.server.commit_ages import Lag
from waltz.types import PartitionId, TransactionId

CONSUMER_NAMES_MAX: Final = 50
"""Consumers of a server that metrics name; the others are counted."""

CONSUMER_PLACES_MAX: Final = 1_000
"""Partitions of all these consumers together; others are counted. A scrape of all takes 10 ms."""

GONE_SECONDS_MAX: Final = 86_400.0
"""A consumer that no client was connected of for so long is told of no more."""


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """A partition of a consumer. `transactions` are committed and not known to be applied,
    `seconds` is the time since the first of them was committed, at least; None: nobody can say.
    While no client of the consumer `is_connected` it may have applied more."""

    name: str
    partition_id: PartitionId
    is_connected: bool
    transactions: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ConsumersState:
    """The consumers at this moment; `left_out` counts partitions of clients that are told of by no
    name."""

    lags: tuple[ConsumerLag, ...] = ()
    left_out: int = 0


LagOf: TypeAlias = Callable[
    [PartitionId, TransactionId], "tuple[TransactionId | None, Lag | None] | None"
]


@dataclass(slots=True)
class _Consumer:
    told: dict[PartitionId, dict[int, TransactionId]] = field(default_factory=dict)
    """The marks of its connected clients, by connection."""
    left: dict[PartitionId, TransactionId] = field(default_factory=dict)
    """The last mark in partitions that none of its connected clients has told of."""

    @property
    def places(self) -> set[PartitionId]:
        return {*self.told, *self.left}

    def has(self, partition_id: PartitionId) -> bool:
        return partition_id in self.told or partition_id in self.left

    def mark(self, partition_id: PartitionId) -> TransactionId:
        """Return the mark of the client that has applied most."""
        told = self.told.get(partition_id)
        return max(told.values()) if told else self.left[partition_id]


class ConsumerMarks:
    """See the module."""

    def __init__(self) -> None:
        self._consumers: dict[str, _Consumer] = {}
        self._gone: dict[str, float] = {}
        """The time at which a consumer lost its last client, the earliest one first."""
        self._connections: dict[int, tuple[str, set[PartitionId]]] = {}
        self._left_out: dict[int, set[PartitionId]] = {}
        self._places = 0

    def note(
        self, connection_id: int, name: str, partition_id: PartitionId, mark: TransactionId
    ) -> None:
        """A consumer has told how far it has applied a partition that it has mounted."""
        consumer = self._consumers.get(name)
        if consumer is None or not consumer.has(partition_id):
            if not self._makes_room(name):
                self._left_out.setdefault(connection_id, set()).add(partition_id)
                return
            consumer = self._consumers.setdefault(name, _Consumer())
            self._places += 1
        self._forget_left_out(connection_id, partition_id)
        self._gone.pop(name, None)
        consumer.left.pop(partition_id, None)
        consumer.told.setdefault(partition_id, {})[connection_id] = mark
        self._connections.setdefault(connection_id, (name, set()))[1].add(partition_id)

    def leave(self, connection_id: int, now: float) -> None:
        """A connection has ended."""
        self._left_out.pop(connection_id, None)
        name, partition_ids = self._connections.pop(connection_id, ("", set()))
        for partition_id in partition_ids:
            consumer = self._consumers[name]
            mark = consumer.told[partition_id].pop(connection_id)
            if not consumer.told[partition_id]:
                del consumer.told[partition_id]
                consumer.left[partition_id] = mark
        if partition_ids and not self._consumers[name].told:
            self._gone[name] = now

    def state(self, lag_of: LagOf, now: float) -> ConsumersState:
        """Return the lags; `lag_of` returns the high-water mark of a partition and the lag of a
        mark in it, None for a partition that this server does not have."""
        for name in [each for each, at in self._gone.items() if now - at > GONE_SECONDS_MAX]:
            self._drop(name)
        found = []
        for name, consumer in self._consumers.items():
            for partition_id in sorted(consumer.places):
                mark = consumer.mark(partition_id)
                if (known := lag_of(partition_id, mark)) is not None:
                    last, lag = known
                    behind = None if lag is None or last is None else last - mark
                    seconds = None if lag is None else lag.least
                    is_told = partition_id in consumer.told
                    found.append(ConsumerLag(name, partition_id, is_told, behind, seconds))
        return ConsumersState(tuple(found), sum(map(len, self._left_out.values())))

    def check_invariants(self) -> None:
        assert len(self._consumers) <= CONSUMER_NAMES_MAX
        assert self._places == sum(len(each.places) for each in self._consumers.values())
        assert self._places <= CONSUMER_PLACES_MAX
        gone = {name for name, each in self._consumers.items() if not each.told}
        assert self._gone.keys() == gone
        for each in self._consumers.values():
            assert not each.told.keys() & each.left.keys()
            assert all(each.told.values())
        told = {
            (connection_id, partition_id)
            for each in self._consumers.values()
            for partition_id, marks in each.told.items()
            for connection_id in marks
        }
        noted = {
            (connection_id, partition_id)
            for connection_id, (_, places) in self._connections.items()
            for partition_id in places
        }
        assert told == noted

    def _makes_room(self, name: str) -> bool:
        """Make room for one more place of this consumer; return whether there is any."""
        for other in [*self._gone]:
            if self._has_room(name):
                return True
            if other != name:
                self._drop(other)
        return self._has_room(name)

    def _drop(self, name: str) -> None:
        """Forget a consumer that is gone."""
        del self._gone[name]
        self._places -= len(self._consumers.pop(name).places)

    def _has_room(self, name: str) -> bool:
        is_known = name in self._consumers or len(self._consumers) < CONSUMER_NAMES_MAX
        return is_known and self._places < CONSUMER_PLACES_MAX

    def _forget_left_out(self, connection_id: int, partition_id: PartitionId) -> None:
        left_out = self._left_out.get(connection_id)
        if left_out is not None:
            left_out.discard(partition_id)
            if not left_out:
                del self._left_out[connection_id]


CONSUMER_LABELS: Final = (
    Label("consumer", f"at most {CONSUMER_NAMES_MAX} consumers of a server"),
    Label("partition", f"its ID; at most {CONSUMER_PLACES_MAX} consumers times partitions"),
)


def _samples(
    state: ConsumersState, value: Callable[[ConsumerLag], float | None]
) -> Sequence[Sample]:
    return [
        ((lag.name, str(lag.partition_id)), found)
        for lag in state.lags
        if (found := value(lag)) is not None
    ]


CONSUMER_METRICS: Final[Sequence[Metric[ConsumersState]]] = (
    gauge(
        "consumer_lags_left_out",
        "Partitions of consumers' clients whose lag is in no metric, for there are too many.",
        lambda s: s.left_out,
    ),
)

CONSUMER_FAMILIES: Final[Sequence[Family[ConsumersState]]] = (
    Family(
        "consumer_lag_transactions",
        "Transactions that are committed and that no client of the consumer is known to have"
        " applied; an upper bound while none is connected.",
        Kind.GAUGE,
        CONSUMER_LABELS,
        lambda s: _samples(s, lambda lag: lag.transactions),
        absent="no client of the consumer has told a mark to this server since it started, or"
        " nobody can say where the log ends",
    ),
    Family(
        "consumer_lag_seconds",
        "Time since the first of these transactions was committed, as far as this server knows; 0"
        " if there is none.",
        Kind.GAUGE,
        CONSUMER_LABELS,
        lambda s: _samples(s, lambda lag: lag.seconds),
        absent="as of the transactions",
    ),
    Family(
        "consumer_connected",
        "1 while a client of the consumer that has told its mark is connected, 0 once none is.",
        Kind.GAUGE,
        CONSUMER_LABELS,
        lambda s: _samples(s, lambda lag: lag.is_connected),
        absent="as of the transactions",
    ),
)
