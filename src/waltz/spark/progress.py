"""The progress of a stream, and the end of its next micro-batch. Pure: no Spark.

A stream's offset is that of a batch read, next transaction ID per partition, together with the
cluster's key, and with the history of the log if a restore has begun one: Spark keeps it in the
checkpoint as JSON, and a checkpoint must not be continued on another log. A partition that an
offset lacks is at its first transaction: it was added later. What a batch was planned with and
another machine would plan otherwise is in the offset, too, so that a batch that is run again has
the same tasks with the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from waltz import Histories
from waltz.errors import ConfigurationError, NotFoundError
from waltz.spark.codes import CLUSTER_CHANGED, INVALID_CHECKPOINT, OUTSIDE_LOG
from waltz.spark.followed_history import expect_history
from waltz.spark.offsets import FIRST_TRANSACTION_ID, TransactionRange
from waltz.types import PartitionId, TransactionId

CLUSTER: Final = "cluster"
HISTORY: Final = "history"
TASKS: Final = "tasks"
END: Final = "end"
END_TIME: Final = "endTime"
"""The keys of an offset that are no partitions."""

REMEDY: Final = (
    "Nothing was read. Use another checkpoint, and a target without the rows of those transactions"
)

NextIds = Mapping[PartitionId, TransactionId]
"""Next transaction ID to read, per partition."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The number of transactions of a partition that a target has taken in, and that the log
    has."""

    partition_id: PartitionId
    taken_in: int
    logged: int


@dataclass(frozen=True, slots=True)
class Progress:
    """The part of one cluster's log that a stream has read."""

    cluster_key: UUID
    next_ids: NextIds
    history: UUID | None = None
    """The history that was read; None: the first one."""
    task_count_max: int | None = None
    """The most tasks of the batch that ends here; None: as many as its ranges are cut into."""
    end: NextIds | None = None
    """The end of the stream, for partitions whose end the log has decided; None: the stream has no
    end."""
    end_time: datetime | None = None
    """The time that the stream ends with, with its zone; None: it ends with IDs."""

    def next_id(self, partition_id: PartitionId) -> TransactionId:
        return self.next_ids.get(partition_id, FIRST_TRANSACTION_ID)

    def encode(self) -> dict[str, Any]:
        """Return the content for a checkpoint, which is JSON: partitions in order."""
        positions = {str(each): self.next_ids[each] for each in sorted(self.next_ids)}
        others: dict[str, Any] = {}
        if self.history is not None:
            others[HISTORY] = str(self.history)
        if self.task_count_max is not None:
            others[TASKS] = self.task_count_max
        if self.end is not None:
            others[END] = {str(each): self.end[each] for each in sorted(self.end)}
        if self.end_time is not None:
            others[END_TIME] = self.end_time.isoformat()
        return {CLUSTER: str(self.cluster_key), **others, **positions}

    @classmethod
    def decode(cls, offset: Mapping[str, object]) -> Progress:
        """Return the progress of a checkpoint. Raises ConfigurationError: it is not one of a
        log."""
        others = (CLUSTER, HISTORY, TASKS, END, END_TIME)
        positions = {key: value for key, value in offset.items() if key not in others}
        try:
            key = UUID(str(offset[CLUSTER]))
            history = UUID(str(offset[HISTORY])) if HISTORY in offset else None
            tasks = _transaction_id(offset[TASKS]) if TASKS in offset else None
            end = _next_ids(offset[END]) if END in offset else None
            end_time = _time(offset[END_TIME]) if END_TIME in offset else None
            next_ids = _next_ids(positions)
        except (KeyError, ValueError):
            raise ConfigurationError(
                f"{INVALID_CHECKPOINT} the checkpoint has the offset {dict(offset)!r:.200};"
                " expected a cluster's key and a transaction ID per partition"
            ) from None
        return cls(key, next_ids, history, tasks, end, end_time)

    def expect_cluster(self, cluster_key: UUID, address: str) -> None:
        """Check the cluster. Raises ConfigurationError: `address` leads to another one now."""
        if self.cluster_key != cluster_key:
            raise ConfigurationError(
                f"{CLUSTER_CHANGED} {address} leads to cluster {cluster_key}; the checkpoint was"
                f" made on {self.cluster_key}. Use another checkpoint for another log"
            )

    def expect_history(self, histories: Histories) -> None:
        """Check that the log has what was read. Raises HistoryChangedError: it was restored from an
        archive that has less."""
        expect_history(histories, self.history, self.next_ids, who="the checkpoint", remedy=REMEDY)

    def ranges_to(self, end: Progress) -> list[TransactionRange]:
        """Return the ranges between two offsets, partitions in order, empty ranges left out."""
        return [
            TransactionRange(partition_id, self.next_id(partition_id), next_id)
            for partition_id, next_id in sorted(end.next_ids.items())
            if self.next_id(partition_id) < next_id
        ]


def _next_ids(value: object) -> NextIds:
    if not isinstance(value, Mapping):
        raise ValueError(value)
    return {PartitionId(int(each)): _transaction_id(place) for each, place in value.items()}


def _transaction_id(value: object) -> TransactionId:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return TransactionId(value)


def _time(value: object) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else None
    if found is None or found.tzinfo is None:
        raise ValueError(value)
    return found


def available(start: Progress, log_ends: NextIds, *, fail_on_data_loss: bool) -> NextIds:
    """Return how far each partition may be read: to its end in the log, never back.

    `log_ends` has the partitions that are read. Raises NotFoundError: a partition has been read
    beyond its end: the log has lost data. Without `fail_on_data_loss` such a partition waits until
    its log has grown to the stream's position.
    """
    if fail_on_data_loss:
        for partition_id, end in sorted(log_ends.items()):
            if start.next_id(partition_id) > end:
                raise NotFoundError(
                    f"{OUTSIDE_LOG} partition {partition_id} was read to"
                    f" {start.next_id(partition_id) - 1}; its high-water mark is {end - 1}. The"
                    " log has lost data; set failOnDataLoss to false to wait until the log is"
                    " that long again"
                )
    return {
        partition_id: max(start.next_id(partition_id), end)
        for partition_id, end in log_ends.items()
    }


def is_beyond(next_ids: NextIds, log_ends: NextIds) -> bool:
    """Return whether a target has more of a partition than the log had when it was asked.

    If the log was asked first, another run may have taken in more meanwhile: ask the log again
    before saying that it has lost data.
    """
    return any(next_ids.get(each, 0) > end for each, end in log_ends.items())


def admit(start: Progress, ends: NextIds, rows_max: int | None) -> NextIds:
    """Return the end of a micro-batch: towards `ends`, by at most `rows_max` transactions.

    Partitions get equal shares; the rest of a share goes to the others, so that a short backlog is
    read whole. A remainder that cannot be shared rotates from batch to batch (PS-03).
    """
    backlog = {
        partition_id: end - start.next_id(partition_id) for partition_id, end in ends.items()
    }
    assert all(count >= 0 for count in backlog.values())
    if rows_max is None or sum(backlog.values()) <= rows_max:
        return dict(ends)
    shares = dict.fromkeys(backlog, 0)
    left = rows_max
    waiting = sorted((each for each in backlog if backlog[each]), key=lambda each: backlog[each])
    while waiting and backlog[waiting[0]] <= left // len(waiting):
        shortest = waiting.pop(0)
        shares[shortest] = backlog[shortest]
        left -= backlog[shortest]
    if waiting:
        share, rest = divmod(left, len(waiting))
        waiting.sort()
        # Positions add up to more with every batch, so the turn moves on without being kept.
        turn = sum(start.next_ids.values()) % len(waiting)
        for index, partition_id in enumerate(waiting[turn:] + waiting[:turn]):
            shares[partition_id] = share + (index < rest)
    return {each: TransactionId(start.next_id(each) + shares[each]) for each in ends}
