"""Decides whether somebody who has followed a log may follow it on.

Owns the judgement on the history and the mark that an application, a database, a checkpoint or a
sink has kept. A log begins with a history that is named after the cluster's key; each restore under
the same key begins another one, and says from which transaction of each partition on
(docs/decisions/0050-who-follows-which-history.md). Knows no database and no connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from waltz.cluster.log_history import LogHistory
from waltz.errors import HistoryChangedError
from waltz.types import PartitionId, TransactionId
from waltz.wall_time import time_at
from waltz.wire.history_protocol import HistoryFirst, ToldHistory

APPLICATION: Final = "the application"

ANOTHER_LOG: Final = (
    "Nothing of this cluster was applied. Open the client at the cluster that the application has"
    " followed, or give the application an empty database (high-water marks and what was applied)."
)

ABANDONED: Final = "Nothing that the log has there now was applied."


@dataclass(frozen=True, slots=True)
class Histories:
    """The histories of one cluster's log: the first one, and those of `restores`, in the order in
    which they began."""

    cluster_key: UUID
    restores: tuple[LogHistory, ...] = ()

    @classmethod
    def kept(cls, cluster_key: UUID, node: Sequence[LogHistory]) -> Histories:
        """Return the histories of the coordinator's node."""
        return cls(cluster_key, tuple(replace(each, retired_directories=()) for each in node))

    @classmethod
    def told(cls, cluster_key: UUID, told: Sequence[ToldHistory]) -> Histories:
        """Return the histories that a server tells."""
        return cls(
            cluster_key,
            tuple(
                LogHistory(each.history_id, each.restored_at_milliseconds, dict(each.firsts))
                for each in told
            ),
        )

    def to_tell(self) -> tuple[ToldHistory, ...]:
        """Return what a server tells of them."""
        return tuple(
            ToldHistory(
                each.history_id,
                each.restored_at_milliseconds,
                tuple(HistoryFirst(p, first) for p, first in sorted(each.firsts.items())),
            )
            for each in self.restores
        )

    @property
    def current(self) -> UUID:
        """The history to which the next transactions belong."""
        return self.restores[-1].history_id if self.restores else self.cluster_key

    def is_before(self, other: Histories) -> bool:
        """Return whether `other` has these histories and further ones."""
        return (
            self.cluster_key == other.cluster_key
            and len(self.restores) < len(other.restores)
            and other.restores[: len(self.restores)] == self.restores
        )

    def check(
        self,
        partition_id: PartitionId,
        stored: UUID | None,
        high_water_mark: int | None = None,
        *,
        who: str = APPLICATION,
        another_log: str = ANOTHER_LOG,
        abandoned: str | None = None,
    ) -> None:
        """Check that `who` has applied `stored` through `high_water_mark` and may apply what
        follows.

        With `stored` None no history was kept: the first one is assumed. With `high_water_mark`
        None only the history is checked. `another_log` and `abandoned` are the remedies. Raises
        HistoryChangedError: another log was followed, or the history beyond its end.
        """
        if stored is None:
            stored = self.cluster_key
        through = "" if high_water_mark is None else f" through transaction {high_water_mark}"
        if stored not in self._names():
            raise HistoryChangedError(
                f"{who} has applied partition {partition_id} of history {stored}{through}, and that"
                f" is no history of the log of cluster {self.cluster_key}, which answers: it is the"
                f" key of another cluster, or a restore that this cluster does not know."
                f" {another_log}"
            )
        restore = self._end_of(partition_id, stored)
        if high_water_mark is None or restore is None:
            return
        first = _first(restore, partition_id)
        if high_water_mark < first:
            return
        raise HistoryChangedError(
            f"{who} has applied partition {partition_id} of history {stored}{through}, and the log"
            f" of cluster {self.cluster_key} was restored from an archive at"
            f" {_time(restore.restored_at_milliseconds)}: from transaction {first} on the partition"
            f" has history {restore.history_id}. Transactions {first} to {high_water_mark}, as they"
            f" were applied, are not in the log any more. {abandoned or application_remedy(first)}"
        )

    def holds(self, partition_id: PartitionId, history: UUID, transaction_id: int) -> bool:
        """Return whether the transactions that `history` had in the partition through
        `transaction_id` are those of the log today."""
        if history not in self._names():
            return False
        restore = self._end_of(partition_id, history)
        return restore is None or transaction_id < _first(restore, partition_id)

    def _names(self) -> list[UUID]:
        return [self.cluster_key, *(each.history_id for each in self.restores)]

    def _end_of(self, partition_id: PartitionId, history: UUID) -> LogHistory | None:
        """Return the restore that says what the log still has of a history in the partition: the
        one that went back furthest, and of several that went back as far, the last one. None: no
        restore came after it."""
        later = self.restores[self._names().index(history) :]
        if not later:
            return None
        return min(reversed(later), key=lambda each: _first(each, partition_id))


def application_remedy(first: int) -> str:
    """Return what helps an application that has applied beyond the end of a history, before
    `first`."""
    return (
        f"{ABANDONED} Restore the application's database (high-water marks and what was applied) as"
        f" of transaction {first - 1} of this partition or before, or give the application an empty"
        " one."
    )


def ahead(
    cluster_key: UUID, partition_id: PartitionId, stored: UUID | None, high_water_mark: int
) -> str:
    """Return the error text for an application that has applied more than the log holds."""
    origin = "an unknown cluster" if stored is None else f"cluster {stored}"
    return (
        f"the application has applied partition {partition_id} of {origin} through transaction"
        f" {high_water_mark}; the log of cluster {cluster_key} ends before that: one of the two was"
        f" set back. {ANOTHER_LOG}"
    )


def _first(restore: LogHistory, partition_id: PartitionId) -> TransactionId:
    """Return the partition's first transaction of the history. A partition that the restored
    cluster did not have has begun anew, if it was added since."""
    return restore.firsts.get(partition_id, TransactionId(0))


def _time(milliseconds: int) -> str:
    """Return a time of a restore's machine, which may be any number."""
    found = time_at(milliseconds)
    return f"{milliseconds} ms after 1970" if found is None else found.isoformat()
