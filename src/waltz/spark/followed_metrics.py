"""The figures of work that follows the log with Spark: a pipeline's runs, a user's stream.

Pure: times are arguments. Owns how far behind the log a reader of it is known to be. That is a
lower bound: the log is known as far as it was last asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from waltz.figures import Durations, Family, Kind, Label, Metric, counter, gauge
from waltz.types import PartitionId

S = TypeVar("S")

OBSERVATIONS_MAX: Final = 1_000
"""Ends of a partition's log that are remembered, with the time at which each was seen; while that
many lie beyond what was taken in no further one is kept."""


@dataclass(frozen=True, slots=True)
class FollowedPartition:
    """A partition of the log as its reader knows it.

    taken_in     transactions that are taken in, from the first on; None: not known yet.
    logged       transactions that the log had when it was last asked; None: it was not asked yet.
    lag_seconds  how long, at least, the first transaction that is not taken in has been in the log;
                 0 if there was none when the log was last asked.
    """

    partition_id: PartitionId
    taken_in: int | None
    logged: int | None
    lag_seconds: float | None

    @property
    def lag_transactions(self) -> int | None:
        if self.taken_in is None or self.logged is None:
            return None
        return max(0, self.logged - self.taken_in)


class FollowedLog:
    """The known ends of a log, and how far it is taken in; times are those of one clock, in
    seconds."""

    def __init__(self) -> None:
        self._taken_in: dict[PartitionId, int] = {}
        self._logged: dict[PartitionId, int] = {}
        self._seen: dict[PartitionId, deque[tuple[float, int]]] = {}

    def log_has(self, ends: Mapping[PartitionId, int], now: float) -> None:
        """Note how many transactions each partition of the log was seen to have."""
        for partition_id, end in ends.items():
            self._logged[partition_id] = end
            seen = self._seen.setdefault(partition_id, deque())
            known = seen[-1][1] if seen else self._taken_in.get(partition_id, 0)
            if end > known and len(seen) < OBSERVATIONS_MAX:
                seen.append((now, end))

    def is_taken_in(self, next_ids: Mapping[PartitionId, int]) -> None:
        """Note how many transactions of each partition are taken in."""
        for partition_id, next_id in next_ids.items():
            self._taken_in[partition_id] = next_id
            seen = self._seen.get(partition_id, deque())
            while seen and seen[0][1] <= next_id:
                seen.popleft()

    def taken_in(self) -> int:
        """Return how many transactions are known to be taken in."""
        return sum(self._taken_in.values())

    def partitions(self, now: float) -> tuple[FollowedPartition, ...]:
        """Return all partitions, in order."""
        return tuple(
            self._partition(each, now) for each in sorted({*self._taken_in, *self._logged})
        )

    def _partition(self, partition_id: PartitionId, now: float) -> FollowedPartition:
        taken_in, logged = self._taken_in.get(partition_id), self._logged.get(partition_id)
        seconds: float | None = None
        if taken_in is not None and logged is not None:
            seen = self._seen.get(partition_id)
            seconds = now - seen[0][0] if seen and taken_in < logged else 0.0
        return FollowedPartition(partition_id, taken_in, logged, seconds)


UNASKED: Final = "until the log was asked"

FOLLOWED_PARTITION_METRICS: Final[tuple[Metric[FollowedPartition], ...]] = (
    gauge(
        "taken_in_transactions",
        "Transactions that are taken in, from the partition's first one on.",
        lambda each: each.taken_in,
        absent="until that is known",
    ),
    gauge(
        "log_transactions",
        "Transactions that the log had when it was last asked.",
        lambda each: each.logged,
        absent=UNASKED,
    ),
    gauge(
        "lag_transactions",
        "Transactions that the log had when it was last asked, and that are not taken in.",
        lambda each: each.lag_transactions,
        absent=UNASKED,
    ),
    gauge(
        "lag_seconds",
        "Time for which, at least, the first transaction that is not taken in has been in the log:"
        " since the reader has seen it there. 0 if there was none when the log was last asked.",
        lambda each: each.lag_seconds,
        absent=UNASKED,
    ),
)


class PartSeconds:
    """The durations of the parts of micro-batches, by the part's name."""

    def __init__(self) -> None:
        self._parts: dict[str, Durations] = {}

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count the parts of one batch."""
        for part, each in seconds.items():
            self._parts.setdefault(part, Durations()).add(each)

    def copy(self) -> dict[str, Durations]:
        return {part: each.copy() for part, each in sorted(self._parts.items())}


def batch_seconds(parts: Callable[[S], Mapping[str, Durations]], bound: str) -> Family[S]:
    """Return the figure of what the parts of batches took; `bound` says which parts there are."""
    return Family(
        "batch_seconds",
        "Time that a part of a batch took.",
        Kind.HISTOGRAM,
        (Label("part", bound),),
        lambda state: [((part,), each) for part, each in parts(state).items()],
    )


@dataclass(frozen=True, slots=True)
class PipelineState:
    """A pipeline that runs until it is stopped, at one moment. Counts are since its start.

    every_seconds           the pause between two rounds.
    log_asked_milliseconds  when the log was last asked for its end, since 1970.
    last_verify             what the last `waltz pipeline verify` has said; None: nothing is known.
    """

    kind: str
    cluster: str
    target: str
    every_seconds: float
    rounds: int
    log_asked_milliseconds: int | None
    batches: int
    transactions: int
    undecodable: int
    written_bytes: int | None
    last_verify: LastVerify | None
    seconds: Mapping[str, Durations]
    partitions: tuple[FollowedPartition, ...]

    @property
    def is_healthy(self) -> bool:
        return self.last_verify is None or self.last_verify.is_equal


@dataclass(frozen=True, slots=True)
class LastVerify:
    """A run of `waltz pipeline verify`.

    verified_at   milliseconds since 1970, by the clock of the machine on which it ran.
    transactions  how many the target had taken in.
    differences   how many were named; 0: the target was equal to the log.
    """

    verified_at: int
    transactions: int
    differences: int

    @property
    def is_equal(self) -> bool:
        return not self.differences


UNVERIFIED: Final = "until `waltz pipeline verify` has run on the target, and after `rebuild`"

PIPELINE_METRICS: Final[tuple[Metric[PipelineState], ...]] = (
    gauge(
        "healthy",
        "0 if the last `waltz pipeline verify` found a difference, else 1.",
        lambda state: float(state.is_healthy),
    ),
    gauge("every_seconds", "The pause between two rounds.", lambda state: state.every_seconds),
    gauge(
        "log_asked_timestamp_seconds",
        "The time, since 1970, at which the log was last asked for its end: a round does at its"
        " beginning and at its end.",
        lambda state: (
            None if state.log_asked_milliseconds is None else state.log_asked_milliseconds / 1000
        ),
        absent=UNASKED,
    ),
    counter("rounds", "Rounds that have ended.", lambda state: state.rounds),
    counter("batches", "Batches that have become part of the target.", lambda s: s.batches),
    counter("transactions", "Transactions in them.", lambda state: state.transactions),
    counter(
        "undecodable", "Transactions of them put aside as undecodable.", lambda s: s.undecodable
    ),
    counter(
        "written_bytes",
        "Bytes of the files that were archived.",
        lambda state: state.written_bytes,
        absent="of tables",
    ),
    gauge(
        "verified_timestamp_seconds",
        "The time, since 1970, at which `waltz pipeline verify` last ended.",
        lambda state: None if state.last_verify is None else state.last_verify.verified_at / 1000,
        absent=UNVERIFIED,
    ),
    gauge(
        "verified_equal",
        "1 if that run found target and log equal, 0 if not.",
        lambda state: None if state.last_verify is None else float(state.last_verify.is_equal),
        absent=UNVERIFIED,
    ),
)

PIPELINE_FAMILIES: Final[tuple[Family[PipelineState], ...]] = (
    batch_seconds(
        lambda state: state.seconds,
        "`read`: read from the log and decoded, or written as files by tasks;"
        " `commit`: grouped, and made part of the target",
    ),
)


def pipeline_json(state: PipelineState) -> dict[str, Any]:
    """Return the answer to `/health`."""
    verify = state.last_verify
    return {
        "healthy": state.is_healthy,
        "kind": state.kind,
        "cluster": state.cluster,
        "target": state.target,
        "rounds": state.rounds,
        "transactions": state.transactions,
        "log_asked_milliseconds": state.log_asked_milliseconds,
        "last_verify": None if verify is None else verify_json(verify),
        "partitions": {
            str(each.partition_id): {
                "taken_in": each.taken_in,
                "log": each.logged,
                "lag_transactions": each.lag_transactions,
                "lag_seconds": each.lag_seconds,
            }
            for each in state.partitions
        },
    }


def verify_json(verify: LastVerify) -> dict[str, Any]:
    return {
        "verified_at": verify.verified_at,
        "transactions": verify.transactions,
        "equal": verify.is_equal,
        "differences": verify.differences,
    }


@dataclass(frozen=True, slots=True)
class StreamState:
    """A streaming query of a user that reads the log, at one moment. Counts are since `observe`.

    name        the query's name, or its ID.
    partitions  those of each of its sources that are logs, by the source's place among its sources.
    """

    name: str
    last_progress_milliseconds: int
    batches: int
    transactions: int
    seconds: Mapping[str, Durations]
    partitions: Mapping[int, tuple[FollowedPartition, ...]]


STREAM_METRICS: Final[tuple[Metric[StreamState], ...]] = (
    gauge(
        "last_progress_timestamp_seconds",
        "The time, since 1970, at which Spark last reported the query's progress.",
        lambda state: state.last_progress_milliseconds / 1000,
    ),
    counter("batches", "Micro-batches that were reported.", lambda state: state.batches),
    counter(
        "transactions",
        "Rows in them that came from the log, as Spark counts them.",
        lambda state: state.transactions,
    ),
)

STREAM_FAMILIES: Final[tuple[Family[StreamState], ...]] = (
    batch_seconds(
        lambda state: state.seconds,
        "Spark's names in `durationMs` of a query's progress: `latestOffset`, `queryPlanning`,"
        " `addBatch`, `walCommit`, `commitOffsets`, and `triggerExecution` for all of it",
    ),
)
