"""Decides whether an application may follow the log of this cluster.

Owns the histories of a cluster's partitions and the judgement on what an application has stored.
Every partition begins with one history, named after the cluster's key; each further one names the
first transaction from which the log was rewritten. Knows no database and no connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from waltz.errors import HistoryChangedError
from waltz.types import PartitionId, TransactionId

REMEDY = (
    "Nothing of this cluster was applied. Open the client at the cluster that the application has"
    " followed, or give the application an empty database (high-water marks and what was applied)."
)


class HistoryBegin(NamedTuple):
    """A history of one partition, and the first transaction that belongs to it."""

    history: UUID
    first_transaction_id: TransactionId


@dataclass(frozen=True, slots=True)
class Histories:
    """The histories of one cluster. `later` has, per partition, those after the first, in order."""

    cluster_key: UUID
    later: Mapping[PartitionId, Sequence[HistoryBegin]] = field(default_factory=dict)

    def of(self, partition_id: PartitionId) -> tuple[HistoryBegin, ...]:
        """Return the histories of a partition, oldest first: at least one."""
        first = HistoryBegin(self.cluster_key, TransactionId(0))
        return (first, *self.later.get(partition_id, ()))

    def current(self, partition_id: PartitionId) -> UUID:
        """Return the history to which the next transactions belong."""
        return self.of(partition_id)[-1].history

    def check(
        self, partition_id: PartitionId, stored: UUID | None, high_water_mark: int | None = None
    ) -> None:
        """Check that an application that has applied `stored` through `high_water_mark` may apply
        what follows.

        An application with `stored` None has kept no history: the first one is assumed; with
        `high_water_mark` None only the history is checked. Raises HistoryChangedError: the
        application has followed another cluster, or has gone beyond the end of a history that
        ended.
        """
        entries = self.of(partition_id)
        if stored is None:
            stored = self.cluster_key
        known = [entry.history for entry in entries]
        through = "" if high_water_mark is None else f" through transaction {high_water_mark}"
        if stored not in known:
            raise HistoryChangedError(
                f"the application has applied partition {partition_id} of cluster"
                f" {stored}{through}, and this client speaks with cluster {self.cluster_key}."
                f" {REMEDY}"
            )
        following = entries[known.index(stored) + 1 :]
        if not following or high_water_mark is None:
            return
        begin = following[0]
        if high_water_mark >= begin.first_transaction_id:
            raise HistoryChangedError(
                f"the application has applied partition {partition_id} of history"
                f" {stored}{through}, and the log of cluster {self.cluster_key} was written anew"
                f" from transaction {begin.first_transaction_id} on, as history {begin.history}."
                f" {REMEDY}"
            )


def ahead(
    cluster_key: UUID, partition_id: PartitionId, stored: UUID | None, high_water_mark: int
) -> str:
    """Return the error text for an application that has applied more than the log holds."""
    origin = "an unknown cluster" if stored is None else f"cluster {stored}"
    return (
        f"the application has applied partition {partition_id} of {origin} through transaction"
        f" {high_water_mark}; the log of cluster {cluster_key} ends before that: one of the two was"
        f" set back. {REMEDY}"
    )
