"""The questions that pages ask of the cluster only while somebody looks at them, and their answers.

Owns the kinds of question, and how often each may be asked, whatever viewers do. Pure values: the
asker fills the answers in, the pages are made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

from waltz.types import PartitionId, RequestId, TransactionId
from waltz.wire.report_protocol import HotLock, RefusalEntry, RefusalsKept, StageDurations

LOCKS_SHOWN_MAX: Final = 20
"""Hot locks, and refused appends, that are asked for and shown."""

HOT_PARTITIONS_PER_SECOND: Final = 10
"""Partitions that servers are asked about per second, on average, for the hottest locks of all;
each costs a server at most some 2 ms, and next to nothing if none of its appends was refused since
it was asked before."""

SESSIONS_SHOWN_MAX: Final = 20
"""Store sessions that are shown, the newest first."""

SINKS_SHOWN_MAX: Final = 100
"""Sinks that are shown; of more, the first by name."""

REQUESTS_LOOKED_AT_MAX: Final = 100_000
"""Transactions of a partition, the newest, among which a request ID is looked for."""


@dataclass(frozen=True, slots=True)
class LocksOf:
    """The locks and the refused appends that the server of a partition remembers."""

    partition_id: PartitionId
    pause: ClassVar = 0.5
    fresh: ClassVar = 5.0


@dataclass(frozen=True, slots=True)
class HottestLocksOf:
    """The hottest locks of all partitions, of which there are `partition_count`: the more there
    are, the longer it takes until they are asked for anew."""

    partition_count: int

    @property
    def pause(self) -> float:
        return max(5.0, self.partition_count / HOT_PARTITIONS_PER_SECOND)

    @property
    def fresh(self) -> float:
        return self.pause


@dataclass(frozen=True, slots=True)
class DurationsOf:
    """The durations of a partition's appends, as its server counts them."""

    partition_id: PartitionId
    pause: ClassVar = 0.5
    fresh: ClassVar = 5.0


@dataclass(frozen=True, slots=True)
class SessionsOf:
    """The store sessions of a partition, as its storage nodes have noted them."""

    partition_id: PartitionId
    pause: ClassVar = 1.0
    fresh: ClassVar = 30.0


@dataclass(frozen=True, slots=True)
class LifeOf:
    """The life of a transaction: every copy is read for it."""

    partition_id: PartitionId
    transaction_id: TransactionId
    pause: ClassVar = 1.0
    fresh: ClassVar = 10.0


@dataclass(frozen=True, slots=True)
class PlaceOf:
    """The place of a time, in milliseconds since 1970, in a partition."""

    partition_id: PartitionId
    milliseconds: int
    pause: ClassVar = 2.0
    fresh: ClassVar = 60.0


@dataclass(frozen=True, slots=True)
class RequestOf:
    """The transaction of a request ID, among the newest of its partition."""

    request_id: RequestId
    pause: ClassVar = 5.0
    fresh: ClassVar = 10.0


@dataclass(frozen=True, slots=True)
class SinksOf:
    """The sinks of Spark that have left a note in the coordinator."""

    pause: ClassVar = 2.0
    fresh: ClassVar = 5.0


@dataclass(frozen=True, slots=True)
class PipelinesOf:
    """The pipelines whose definitions the console was given."""

    pause: ClassVar = 10.0
    fresh: ClassVar = 15.0


Inquiry: TypeAlias = (
    LocksOf
    | HottestLocksOf
    | DurationsOf
    | SessionsOf
    | LifeOf
    | PlaceOf
    | RequestOf
    | SinksOf
    | PipelinesOf
)
"""A question. `pause` is the least time between two questions of its kind, in seconds, whatever
they are about; an answer that is older than `fresh` seconds is asked for anew while it is shown."""


READ_FOR_A_PAGE: Final = (LifeOf, PlaceOf, RequestOf)
"""Questions that are asked when a page is opened, and not while it is open; the page says that its
answer was read for it."""


@dataclass(frozen=True, slots=True)
class LocksTold:
    """The locks with the most refusals, and the newest refusals, as far as a server remembers."""

    kept: RefusalsKept
    locks: tuple[HotLock, ...] = ()
    refusals: tuple[RefusalEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class DurationsTold:
    """The durations by stage since the partition was opened, and those of the last `seconds`; None:
    there is no earlier answer to compare with."""

    stages: tuple[StageDurations, ...]
    lately: tuple[StageDurations, ...] | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SessionTold:
    """A store session: the first time at which a node noted its start, in milliseconds since 1970
    by the node's clock, the mark with which it began, and the number of nodes that noted it."""

    session_id: int
    milliseconds: int
    low_water_mark: int
    nodes: int


@dataclass(frozen=True, slots=True)
class SessionsTold:
    """The newest first. `silent` are the storage nodes that told nothing, with the reason."""

    sessions: tuple[SessionTold, ...]
    nodes: int
    silent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlaceTold:
    """Every transaction before `first` was on a majority of nodes by then; `later` is the first
    that is known to have been committed after, None: no such one is known."""

    first: int
    later: int | None


@dataclass(frozen=True, slots=True)
class RequestTold:
    """The transaction of a request ID; None: it is not among those from `first` to `last`.
    `refusals` counts how often the append was refused, as far as the server remembers; None: it
    could not be asked."""

    transaction_id: int | None
    first: int
    last: int
    refusals: int | None


@dataclass(frozen=True, slots=True)
class SinkTold:
    """A sink: its query's or write's ID, its last batch, the number of its tasks that have written
    rows of that batch, and its marks before the batch.

    `changed_seconds` is the time since this console saw its notes change, None: they have not since
    the console looked first, `watched_seconds` ago. `problem` is why a note cannot be read."""

    write_id: str
    batch: int
    tasks: int
    marks: Mapping[int, int]
    refusal: str | None
    changed_seconds: float | None
    watched_seconds: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SinksTold:
    sinks: tuple[SinkTold, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class PipelineTold:
    """A pipeline by its definition file; for each partition the number of transactions that its
    target has taken in and that the log has. `problem` is why it cannot be said."""

    file: str
    kind: str
    target: str
    partitions: tuple[tuple[int, int, int], ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PipelinesTold:
    pipelines: tuple[PipelineTold, ...]


def stages_between(
    before: tuple[StageDurations, ...], after: tuple[StageDurations, ...]
) -> tuple[StageDurations, ...] | None:
    """Return the durations that were counted between two answers; None: the partition was opened
    anew, or the answers do not fit together."""
    found = []
    earlier = {each.stage: each for each in before}
    for stage in after:
        old = earlier.get(stage.stage)
        if old is None or [b.bound_microseconds for b in old.buckets] != [
            b.bound_microseconds for b in stage.buckets
        ]:
            return None
        buckets = tuple(
            type(new)(new.bound_microseconds, new.count - past.count)
            for past, new in zip(old.buckets, stage.buckets, strict=True)
        )
        if any(each.count < 0 for each in buckets):
            return None
        total = max(0, stage.sum_microseconds - old.sum_microseconds)
        found.append(StageDurations(stage.stage, total, buckets))
    return tuple(found)


def quantile(stage: StageDurations, share: float) -> tuple[float, float | None] | None:
    """Return the bounds, in seconds, between which this share of the durations ends; the upper one
    is None in the last bucket. None: there are no durations."""
    total = sum(max(0, each.count) for each in stage.buckets)
    if not total:
        return None
    below, low = 0, 0.0
    for each in stage.buckets:
        below += max(0, each.count)
        high = None if each.bound_microseconds < 0 else each.bound_microseconds / 1_000_000
        if below >= share * total:
            return low, high
        low = low if high is None else high
    return low, None
