"""The verbs for those who want a log and nothing else: appends that depend on nothing.

Owns what they submit and what they return. How a context is submitted is the client's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from waltz.client.bulk import BulkRows, ManyAppends, RowColumns
from waltz.client.submission import Submission
from waltz.client.submissions.shell import until_applied
from waltz.client.transaction import Lock, PlainAppend, TransactionContext
from waltz.types import TransactionId


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
        Raises as `submit`; that and ClientClosedError may leave it in the log.
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
