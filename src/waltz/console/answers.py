"""The answers of a cluster's processes, each with the time of its question.

Owns the rule that an answer counts while it is fresh, and that anything else is unknown for a
reason that can be told. Pure values: the poller fills them in, the picture is made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from waltz.cli.cluster_list import ClusterMetadata
from waltz.cli.storage_questions import StorageReport
from waltz.console.node_figures import NodeFigures
from waltz.operators.questions_shell import ReportAnswers
from waltz.types import Address, PartitionId, ReplicaId

T = TypeVar("T")

SERVER_FRESH_SECONDS: Final = 6.0
"""Seconds that a server's answer counts: a server may wait 2 s for its replicas, and is asked again
once it has answered."""

NODE_FRESH_SECONDS: Final = 8.0
"""Seconds that a storage node's answer counts."""

CONSUMERS_FRESH_SECONDS: Final = 10.0
"""Seconds that what is known of consumers counts."""

COORDINATOR_FRESH_SECONDS: Final = 15.0
"""Seconds that the coordinator's answer counts; the layout of a cluster changes seldom."""


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """The last answer of a process, and what came of the last question.

    `asked_at` is when the question of `answer` was asked: the age of an answer is at least the
    true one.
    `trouble` is why the last finished question was not answered, None if it was.
    """

    answer: T | None = None
    asked_at: float | None = None
    trouble: str | None = None
    fresh_seconds: float = SERVER_FRESH_SECONDS

    def age(self, now: float) -> float | None:
        """Return the seconds since the answer was asked for; None: there is no answer."""
        return None if self.asked_at is None else max(0.0, now - self.asked_at)

    def known(self, now: float) -> T | None:
        """Return the answer if it counts at `now`, else None."""
        return None if self.why_unknown(now) is not None else self.answer

    def why_unknown(self, now: float) -> str | None:
        """Return why nothing is known now; None: the answer counts."""
        if self.trouble is not None:
            return self.trouble
        age = self.age(now)
        if self.answer is None or age is None:
            return "it has not answered yet"
        if age > self.fresh_seconds:
            return f"it has not answered for {age:.0f} s"
        return None


@dataclass(frozen=True, slots=True)
class ServerTold:
    """A server's answer. `reports` None: its release has no reports, for the reason `silence`; then
    `health` is whether each partition has a store session."""

    reports: ReportAnswers | None
    silence: str | None = None
    health: Mapping[PartitionId, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeTold:
    """A storage node's answer. `drain_seconds` is the mean duration of the writes and syncs since
    the answer before; None: there were none, or there is no answer before."""

    report: StorageReport
    figures: NodeFigures | None = None
    drain_seconds: float | None = None


NOT_TOLD: Final = "This cluster's servers do not tell who is connected."


@dataclass(frozen=True, slots=True)
class ConsumerAnswer:
    """A partition of a consumer, which is all clients of one name.

    `mark` is the last transaction that they are known to have applied. If `is_current`, a client
    that is connected tells it; otherwise they may have applied more, and the lags are upper bounds.
    What nobody knows is None. `addresses` are those of the connected clients, and `principals` the
    names in their verified certificates, as far as they have one. `may_be_connected`: none of its
    clients is known to be connected, and not every server has told all of its clients.
    """

    name: str
    partition_id: PartitionId
    mark: int | None
    is_current: bool
    lag_transactions: int | None
    lag_least_seconds: float | None
    lag_most_seconds: float | None
    addresses: tuple[str, ...]
    principals: tuple[str, ...]
    may_be_connected: bool = False


@dataclass(frozen=True, slots=True)
class ConsumersTold:
    """All consumers; `unasked` has the servers that did not answer, each with the reason.
    `is_complete`: nothing is left out. `unread` has the consumers whose kept marks cannot be read,
    each with the reason: in which partitions they were, and how far, is not known."""

    consumers: tuple[ConsumerAnswer, ...]
    unasked: Mapping[str, str] = field(default_factory=dict)
    is_complete: bool = True
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterAnswers:
    """All answers as they are at `now`. `names` are the names that the user gave to addresses;
    `rates` are commits per second of each partition, where two marks are known."""

    now: float
    coordinator: Told[ClusterMetadata]
    servers: Mapping[Address, Told[ServerTold]] = field(default_factory=dict)
    nodes: Mapping[ReplicaId, Told[NodeTold]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[PartitionId, float] = field(default_factory=dict)
    consumers: Told[ConsumersTold] | None = None
    """None: the servers of this release cannot be asked."""
    away_at: Mapping[ReplicaId, float] = field(default_factory=dict)
    """The last time at which each storage node did not answer, of those that have since."""
