"""Verbs made of others: appends that depend on nothing, and the wait for all that is there.

Owns what they submit and what they return. How a context is submitted is the client's.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Unpack

from waltz.arrays import np
from waltz.client.appends.submission import Submission
from waltz.client.appends.submissions_shell import until_applied
from waltz.client.applying.blocked import BlockedPartition
from waltz.client.bulk import BulkRows, ManyAppends, RowColumns
from waltz.client.partitions.partition_runner_shell import PartitionRunner
from waltz.client.transaction import Lock, PlainAppend, TransactionContext
from waltz.errors import OperationTimeoutError
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PlainVerbs(ABC):
    """See the module."""

    @abstractmethod
    async def submit(
        self,
        context: TransactionContext,
        *,
        on_finished: Callable[[Submission, Exception | None], None] | None = None,
    ) -> None: ...

    @abstractmethod
    def runner(self, partition_id: int) -> PartitionRunner: ...

    @abstractmethod
    async def get_high_water_mark(
        self, partition_id: int, timeout_seconds: float | None = None
    ) -> TransactionId: ...

    runners: dict[PartitionId, PartitionRunner]

    def active_partitions(self) -> list[PartitionId]:
        """Return the partitions that this client follows."""
        return sorted(self.runners)

    def blocked_partitions(self) -> dict[PartitionId, BlockedPartition]:
        """Return the partitions whose next transaction the application cannot apply now, and why.

        Each is tried again, later and later, while the others go on (PM-38).
        """
        runners = list(self.runners.values())
        return {each.partition_id: each.blocked for each in runners if each.blocked is not None}

    def parked_transactions(self) -> dict[PartitionId, int]:
        """Return how many transactions this client has parked, per partition that has some."""
        runners = list(self.runners.values())
        return {each.partition_id: each.parked_count for each in runners if each.parked_count}

    async def wait_until_applied(
        self,
        *,
        partitions: Collection[int] | None = None,
        timeout_seconds: float | None = None,
    ) -> dict[PartitionId, TransactionId]:
        """Return once all that the log holds at this moment has been applied here.

        Asks the servers for the high-water marks of `partitions`, by default all that this client
        follows, and returns them. By default it has no time limit. Raises OperationTimeoutError,
        with what is missing; PartitionBlockedError: the application cannot apply a transaction
        before; NotFoundError, PartitionInactiveError, HistoryChangedError, ClientClosedError;
        LocalProtocolError: called inside a callback.
        """
        self._refuse_inside_callbacks("wait_until_applied")
        chosen = self.active_partitions() if partitions is None else partitions
        runners = [self.runner(number) for number in dict.fromkeys(chosen)]
        marks: dict[PartitionId, TransactionId] = {}

        async def wait(runner: PartitionRunner) -> None:
            mark = await self._mark_within(runner.partition_id, timeout_seconds)
            marks[runner.partition_id] = mark
            await runner.applied(mark)

        tasks = [asyncio.create_task(wait(runner)) for runner in runners]
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.gather(*tasks)
        except TimeoutError:
            missing = [
                f"partition {each.partition_id} is at {each.high_water_mark} of"
                f" {marks.get(each.partition_id, 'an unknown mark')}"
                for each in runners
                if each.high_water_mark < marks.get(each.partition_id, each.high_water_mark + 1)
            ]
            raise OperationTimeoutError(
                f"not applied in {timeout_seconds} s: {'; '.join(missing)}"
            ) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return dict(sorted(marks.items()))

    async def _mark_within(
        self, partition_id: PartitionId, timeout_seconds: float | None
    ) -> TransactionId:
        """Ask until a server says it, for as long as the caller has."""
        while True:
            try:
                return await self.get_high_water_mark(partition_id, timeout_seconds)
            except OperationTimeoutError:
                if timeout_seconds is not None:
                    raise

    @abstractmethod
    def _refuse_inside_callbacks(self, verb: str) -> None: ...

    async def append(
        self,
        partition_id: int,
        data: bytes,
        *,
        header: int = 0,
        write_locks: Sequence[Lock] = (),
        read_locks: Sequence[Lock] = (),
        append_locks: Sequence[Lock] = (),
        timeout_seconds: float | None = None,
    ) -> TransactionId:
        """Append one transaction and return its ID once it is in the log and applied here.

        For data that does not depend on what was applied: a refused lock is tried again with the
        same data. By default it has no time limit; one that passes raises OperationTimeoutError.
        Raises as `submit`; PartitionBlockedError: the application cannot apply one before it; these
        and ClientClosedError may leave it in the log.
        """
        self._refuse_inside_callbacks("append")
        context = PlainAppend(partition_id, data, header, write_locks, read_locks, append_locks)
        context.timeout_seconds = timeout_seconds
        return await until_applied(self.submit, context)

    async def append_many(
        self,
        partition_id: int,
        data: Sequence[bytes],
        *,
        timeout_seconds: float | None = None,
        **columns: Unpack[RowColumns],
    ) -> NDArray[np.int64]:
        """Append many transactions, and return their IDs once all are in the log and applied here.

        As `WaltzClient.append_many`.
        """
        self._refuse_inside_callbacks("append_many")
        context = ManyAppends(partition_id, BulkRows(data, **columns), timeout_seconds)
        if len(context.rows):
            await until_applied(self.submit, context)
        return context.transaction_ids
