"""Carries out the requests of tools in the partitions of a node: assignment, access, questions.

Owns the order in which partitions are asked. The meaning of the requests is in `administration.py`
and `partition_replica.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from waltz.errors import StorageError
from waltz.storage.administration import answer_of_node, answer_of_partition, check_partition_ids
from waltz.storage.directory.partition_promises import not_assigned
from waltz.storage.journal.partition_journal import JournalPart
from waltz.storage.partition_queue_shell import PartitionQueue
from waltz.storage.storage_metrics import NodeState
from waltz.storage.upkeep_shell import log_opened
from waltz.types import PartitionId, TransactionId
from waltz.wire.admin_protocol import (
    AdminLastSessionInfoRequest,
    AdminMessage,
    AdminRecordListRequest,
    AdminSuccessResponse,
    AssignedPartitionStatusRequest,
    JournalRequest,
    JournalResponse,
    MetricsRequest,
    PartitionAccessRequest,
    PartitionAssignmentRequest,
    PartitionAvailableRequest,
    PartitionCountRequest,
)

log = logging.getLogger(__name__)


class Administrator:
    """Answers requests of the admin port."""

    def __init__(
        self,
        queues: Mapping[PartitionId, PartitionQueue],
        partition_count: Callable[[], int],
        new_queue: Callable[[PartitionId], Awaitable[PartitionQueue]],
        state: Callable[[], NodeState],
        look: Callable[[], Awaitable[None]],
    ) -> None:
        """`queues` is the node's own mapping, which changes; `new_queue` adds a queue; `look` asks
        the coordinator for the number of partitions."""
        self._queues = queues
        self._partition_count = partition_count
        self._new_queue = new_queue
        self._state = state
        self._look = look

    async def answer(self, message: AdminMessage) -> AdminMessage:
        """Do what `message` asks for, in the turn of each partition concerned, and return the
        answer. Raises REFUSALS."""
        match message:
            case PartitionAvailableRequest(_, partition_ids, available):
                await self._set_access(partition_ids, readable=available, writable=available)
            case PartitionAccessRequest(_, partition_ids, readable, writable):
                await self._set_access(partition_ids, readable=readable, writable=writable)
            case PartitionAssignmentRequest(_, partition_ids, True, _):
                check_partition_ids(partition_ids, self._partition_count())
                for partition_id in partition_ids:
                    queue = self._queues.get(partition_id) or await self._new_queue(partition_id)
                    torn = await queue.command(queue.partition.assign)
                    log_opened(queue.partition, torn)
            case PartitionAssignmentRequest(_, partition_ids, False, delete_files):
                for queue in [self._assigned_queue(number) for number in partition_ids]:
                    await queue.command(
                        partial(queue.partition.unassign, delete_files=delete_files)
                    )
                    log.info("partition_given_up partition=%d", queue.partition.partition_id)
            case AdminRecordListRequest() | AdminLastSessionInfoRequest():
                queue = self._assigned_queue(message.partition_id)
                return await queue.command(partial(answer_of_partition, queue.partition, message))
            case JournalRequest(number, partition_id, first, last):
                part = await _journal_part(self._assigned_queue(partition_id), first, last)
                return JournalResponse(number, partition_id, part.next_transaction_id, part.entries)
            case PartitionCountRequest():
                await self._look()
                return answer_of_node(self._state(), message)
            case MetricsRequest() | AssignedPartitionStatusRequest():
                return answer_of_node(self._state(), message)
            case _:
                raise StorageError(f"{type(message).__name__} is not a request to a storage node")
        return AdminSuccessResponse(message.sequence_number)

    async def _set_access(
        self, partition_ids: Sequence[PartitionId], *, readable: bool, writable: bool
    ) -> None:
        for queue in [self._assigned_queue(number) for number in partition_ids]:
            partition = queue.partition
            torn = await queue.command(
                partial(partition.set_access, readable=readable, writable=writable)
            )
            log_opened(partition, torn)
            log.info(
                "partition_access partition=%d readable=%s writable=%s",
                partition.partition_id, readable, writable,
            )  # fmt: skip

    def _assigned_queue(self, partition_id: PartitionId) -> PartitionQueue:
        """Return the queue of an assigned partition. Raises NotFoundError."""
        check_partition_ids([partition_id], self._partition_count())
        queue = self._queues.get(partition_id)
        if queue is None:
            raise not_assigned(partition_id)
        return queue


async def _journal_part(
    queue: PartitionQueue, first: TransactionId, last: TransactionId
) -> JournalPart:
    """Return what the journal has of the transactions from `first` on, in the partition's turn.
    Raises as `PartitionQueue.command`, and OSError, CorruptionError."""

    def part() -> JournalPart:
        queue.partition.promises.check_assigned()
        return queue.journal.part(first, last)

    return await queue.command(part)
