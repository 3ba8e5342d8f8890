"""Calls that wait for what becomes of one partition: until it has applied, or for an outcome.

Every call ends: with its result, or with the reason why that never comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from waltz.client.partitions.client_partition_events import OutcomeWanted
from waltz.client.partitions.outcome_questions import OutcomeKnown, OutcomeRefused
from waltz.types import RequestId, TransactionId


class WaitingCalls:
    """See the module. `ask` asks the partition's server for an outcome."""

    def __init__(self, ask: Callable[[OutcomeWanted], None]) -> None:
        self.error: Exception | None = None
        """Why nothing more is applied here and no question is answered; None: both go on."""
        self._ask = ask
        self._applied_through: TransactionId | None = None
        """The last transaction that `tell_applied` told of; the machine learns of it later."""
        self._waiting: list[tuple[TransactionId, asyncio.Future[None]]] = []
        self._outcomes: dict[RequestId, list[asyncio.Future[TransactionId | None]]] = {}

    async def outcome(self, request_id: RequestId, after: TransactionId) -> TransactionId | None:
        """Return where the append is in the log; None if it is not there and never will be.

        Raises LocalProtocolError: nobody can say; and what the partition ended with.
        """
        if self.error is not None:
            raise self.error
        future: asyncio.Future[TransactionId | None] = asyncio.get_running_loop().create_future()
        self._outcomes.setdefault(request_id, []).append(future)
        self._ask(OutcomeWanted(request_id, after))
        return await future

    async def applied(self, transaction_id: TransactionId) -> None:
        """Return once the application has applied the transaction, and all before it.

        Raises PartitionBlockedError: the next one cannot be applied; and what the partition ended
        with.
        """
        if self.error is not None:
            raise self.error
        if self._applied_through is not None and self._applied_through >= transaction_id:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((transaction_id, future))
        try:
            await future
        finally:
            self._waiting.remove((transaction_id, future))

    def tell_applied(self, last: TransactionId) -> None:
        if self._applied_through is None or last > self._applied_through:
            self._applied_through = last
        for transaction_id, future in self._waiting:
            if transaction_id <= last and not future.done():
                future.set_result(None)

    def fail_applied(self, error: Exception) -> None:
        """End all waiting for transactions to be applied with `error`."""
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # the caller may have gone

    def tell_outcome(self, effect: OutcomeKnown | OutcomeRefused) -> None:
        for future in self._outcomes.pop(effect.request_id, ()):
            if future.done():
                continue
            if isinstance(effect, OutcomeKnown):
                future.set_result(effect.transaction_id)
            else:
                future.set_exception(effect.error)

    def end(self, error: Exception) -> None:
        """End all calls with `error`, open ones and later ones: no answer will come."""
        self.error = self.error or error
        self.fail_applied(error)
        for futures in self._outcomes.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # the caller may have gone
        self._outcomes.clear()
