"""The figures of a pipeline that runs: its batches, the log, and the last verify.

The thread that runs the pipeline writes it, a scraper's thread reads it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

from waltz.spark.followed_metrics import FollowedLog, LastVerify, PartSeconds, PipelineState
from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.pipelines.table_store import Layout
from waltz.spark.pipelines.target import TableWritten
from waltz.spark.progress import NextIds, PartitionLag
from waltz.types import TransactionId


@dataclass(frozen=True, slots=True)
class BatchSeen:
    """A batch that has become part of a target.

    next_ids    what the target has now.
    seconds     what its parts took, by name.
    byte_count  the size of the files written; None: no files.
    written     what was written to each table, as far as the batch has written to it; of an archive
                its files, by the name ARCHIVE.
    """

    next_ids: NextIds
    transactions: int
    undecodable: int
    byte_count: int | None
    seconds: Mapping[str, float]
    written: Mapping[str, TableWritten] = field(default_factory=dict)


ARCHIVE: Final = ""
"""The name of an archive where tables have names: no table has this one."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A pass that has something to do, before it reads.

    marks      what the target has.
    layouts    the tables of the definition; none of an archive.
    from_past  tables that are derived from the first transaction on, and then join the others.
    is_reread  whether the log is read from the first transaction on.
    """

    cluster_key: UUID
    marks: NextIds
    layouts: Sequence[Layout] = ()
    from_past: tuple[str, ...] = ()
    is_reread: bool = False


class Watching(Protocol):
    """The one that a run tells what it sees."""

    def log_has(self, ends: NextIds) -> None:
        """Note the end of each partition of the log, which was asked just now."""

    def begins(self, beginning: Beginning) -> None:
        """Note that there is something to do, before it is read. Is called again within a pass that
        first derives tables from the past."""

    def took_in(self, batch: BatchSeen) -> None:
        """Count a batch."""


class _Nobody:
    def log_has(self, ends: NextIds) -> None:
        pass

    def begins(self, beginning: Beginning) -> None:
        pass

    def took_in(self, batch: BatchSeen) -> None:
        pass


NOBODY: Final[Watching] = _Nobody()
"""Most runs are not watched."""


class Watchers:
    """Several that are told the same, in their order."""

    def __init__(self, *each: Watching) -> None:
        self._each = each

    def log_has(self, ends: NextIds) -> None:
        for watching in self._each:
            watching.log_has(ends)

    def begins(self, beginning: Beginning) -> None:
        for watching in self._each:
            watching.begins(beginning)

    def took_in(self, batch: BatchSeen) -> None:
        for watching in self._each:
            watching.took_in(batch)


class PipelineWatch:
    """The figures of one pipeline since it was made; `clock` is monotonic, `wall` is not."""

    def __init__(
        self,
        definition: PipelineDefinition,
        every_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._definition, self._every = definition, every_seconds
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._log = FollowedLog()
        self._seconds = PartSeconds()
        self._asked: int | None = None
        self._rounds = self._batches = self._transactions = self._undecodable = 0
        self._bytes = 0 if definition.kind == "archive" else None
        self._verify: LastVerify | None = None

    def log_has(self, ends: NextIds) -> None:
        with self._lock:
            self._log.log_has(ends, self._clock())
            self._asked = int(self._wall() * 1000)

    def begins(self, beginning: Beginning) -> None:
        """Do nothing: figures are of what was done."""

    def took_in(self, batch: BatchSeen) -> None:
        with self._lock:
            self._batches += 1
            self._transactions += batch.transactions
            self._undecodable += batch.undecodable
            if batch.byte_count is not None:
                self._bytes = (self._bytes or 0) + batch.byte_count
            self._seconds.add(batch.seconds)
            self._log.is_taken_in(batch.next_ids)

    def round_ended(self, lags: Sequence[PartitionLag]) -> None:
        """Count a round; `lags` are what log and target have now."""
        self.log_has({each.partition_id: TransactionId(each.logged) for each in lags})
        with self._lock:
            self._log.is_taken_in({each.partition_id: each.taken_in for each in lags})
            self._rounds += 1

    def verify_is(self, verify: LastVerify | None) -> None:
        """Note the record of the last verify. One of more transactions than the target has is of a
        target that was there before, and says nothing of this one."""
        with self._lock:
            is_older = verify is not None and verify.transactions > self._log.taken_in()
            self._verify = None if is_older else verify

    def state(self) -> PipelineState:
        with self._lock:
            return PipelineState(
                kind=self._definition.kind,
                cluster=self._definition.cluster,
                target=self._definition.place,
                every_seconds=self._every,
                rounds=self._rounds,
                log_asked_milliseconds=self._asked,
                batches=self._batches,
                transactions=self._transactions,
                undecodable=self._undecodable,
                written_bytes=self._bytes,
                last_verify=self._verify,
                seconds=self._seconds.copy(),
                partitions=self._log.partitions(self._clock()),
            )
