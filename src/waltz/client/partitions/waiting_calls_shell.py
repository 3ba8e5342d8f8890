"""Calls that wait for what becomes of one partition: until it has applied, or for an outcome.

Every call ends: with its result, or with the reason why that never comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from waltz.client.partitions.client_partition_events import OutcomeWanted
from waltz.client.partitions.outcome_questions import OutcomeKnown, OutcomeRefused
from waltz.errors import ClientClosedError, PermissionDeniedError
from waltz.types import RequestId, TransactionId

T = TypeVar("T")


class WaitingCalls:
    """See the module. `ask` asks the partition's server for an outcome."""

    def __init__(self, ask: Callable[[OutcomeWanted], None]) -> None:
        self.error: Exception | None = None
        """Why nothing more is applied here and no question is answered; None: both go on."""
        self.denied: PermissionDeniedError | None = None
        """Why no server answers for the partition; None: one does, or may soon."""
        self._ask = ask
        self._applied_through: TransactionId | None = None
        """The last transaction that `tell_applied` told of; the machine learns of it later."""
        self._waiting: list[tuple[TransactionId, asyncio.Future[None]]] = []
        self._outcomes: dict[RequestId, list[asyncio.Future[TransactionId | None]]] = {}
        self._asking: dict[asyncio.Task[Any], None] = {}
        """Questions to servers that end with the partition."""

    def check_open(self) -> None:
        """Raises what the partition has ended with, or why it is denied."""
        error = self.error or self.denied
        if error is not None:
            raise error

    def is_end(self, error: Exception) -> bool:
        """Return whether `error` is the end of the client or of the partition."""
        return error is self.error or isinstance(error, ClientClosedError)

    async def unless_ended(self, question: Coroutine[Any, Any, T]) -> T:
        """Return the answer to `question`, which may wait for a server as long as there is none.

        Raises what `question` raises, or what the partition ends with before there is an answer.
        """
        if self.error is not None or self.denied is not None:
            question.close()
        self.check_open()
        asking = asyncio.create_task(question)
        self._asking[asking] = None
        try:
            return await asking
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and not caller.cancelling():
                self.check_open()
            raise
        finally:
            del self._asking[asking]

    async def outcome(self, request_id: RequestId, after: TransactionId) -> TransactionId | None:
        """Return where the append is in the log; None if it is not there and never will be.

        Raises LocalProtocolError: nobody can say; and what the partition ended with.
        """
        self.check_open()
        future: asyncio.Future[TransactionId | None] = asyncio.get_running_loop().create_future()
        self._outcomes.setdefault(request_id, []).append(future)
        self._ask(OutcomeWanted(request_id, after))
        try:
            return await future
        finally:
            self._forget_question(request_id, future)

    def _forget_question(
        self, request_id: RequestId, future: asyncio.Future[TransactionId | None]
    ) -> None:
        """Forget a caller that was answered, or waits no longer."""
        waiting = self._outcomes.get(request_id, [])
        if future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._outcomes[request_id]

    async def applied(self, transaction_id: TransactionId) -> None:
        """Return once the application has applied the transaction, and all before it.

        Raises PartitionBlockedError: the next one cannot be applied; and what the partition ended
        with.
        """
        self.check_open()
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
        self._fail_all(error)

    def deny(self, error: PermissionDeniedError) -> None:
        """End all calls with `error`, open ones and later ones, until `grant`."""
        self.denied = error
        self._fail_all(error)

    def grant(self) -> None:
        """Let calls wait again."""
        self.denied = None

    def _fail_all(self, error: Exception) -> None:
        for asking in self._asking:
            asking.cancel()
        self.fail_applied(error)
        for futures in self._outcomes.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # the caller may have gone
        self._outcomes.clear()
