"""Clients and readers for asyncio, of a cluster in memory that runs on a loop of its own.

Owns the way from the application's loop, whichever it is, to the cluster's and back. What they do
is the product's own: every verb is one of an `AsyncWaltzClient` or `AsyncLogReader` over there.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import wraps
from typing import Any, Generic, TypeVar
from uuid import UUID

from waltz.client import engine_shell
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.engine_shell import ClientEngine
from waltz.cluster.histories import Histories
from waltz.errors import ClientClosedError, LocalProtocolError
from waltz.reader import reader_shell
from waltz.reader.reader_shell import AsyncLogReader
from waltz.reader.transaction_columns import TransactionColumns, WantsData
from waltz.testing.paced_loop import SharedThread

A = TypeVar("A", AsyncWaltzClient, AsyncLogReader)
T = TypeVar("T")


class FaceForLoops(Generic[A]):
    """The base of faces for any loop: every verb of A that waits is run on the cluster's loop.

    To be the first base of a class whose second base is A: that one is never initialized.
    """

    _not_started: str
    """The text of the error for a call before `start`: that of A."""

    def __init__(self, thread: SharedThread, new: Callable[[], A]) -> None:
        """`new` is called on the cluster's loop: what an A is made of belongs there."""
        self._thread = thread
        self._new: Callable[[], A] = new
        self._made: A | None = None

    def __init_subclass__(cls) -> None:
        for name, verb in inspect.getmembers(cls, inspect.iscoroutinefunction):
            if not name.startswith("_") and not hasattr(FaceForLoops, name):
                setattr(cls, name, _done_there(verb))

    @property
    def _there(self) -> A:
        """Raises LocalProtocolError: not started."""
        if self._made is None:
            raise LocalProtocolError(self._not_started)
        return self._made

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._thread.begin(work))

    async def start(self) -> None:
        """Make the A and start it. Raises what that raises."""

        async def start() -> A:
            made = self._new()
            await made.start()
            return made

        self._made = await self._do(start())

    async def close(self) -> None:
        """Close the A, unless it was closed with its cluster. Raises what that raises."""
        with contextlib.suppress(ClientClosedError):
            await self._do(self.close_there())

    async def close_there(self) -> None:
        """Close the A; to be called on the cluster's loop."""
        if self._made is not None:
            await self._made.close()

    async def _iterate(self, there: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        async def advance() -> T | None:
            return await anext(there, None)

        try:
            while (found := await self._do(advance())) is not None:
                yield found
        finally:
            await self._do(there.aclose())


def _done_there(verb: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    @wraps(verb)
    async def call(self: FaceForLoops[Any], *args: Any, **kwargs: Any) -> Any:
        return await self._do(verb(self._there, *args, **kwargs))

    return call


class AsyncTestClient(FaceForLoops[AsyncWaltzClient], AsyncWaltzClient):
    """An `AsyncWaltzClient` for any loop: started by entering it, closed by leaving it."""

    _not_started = engine_shell.NOT_STARTED

    def __init__(
        self,
        thread: SharedThread,
        options: ClientOptions,
        new: Callable[[], AsyncWaltzClient],
    ) -> None:
        super().__init__(thread, new)
        self.options = options

    @property
    def engine(self) -> ClientEngine:
        return self._there.engine


class AsyncTestReader(FaceForLoops[AsyncLogReader], AsyncLogReader):
    """An `AsyncLogReader` for any loop."""

    _not_started = reader_shell.NOT_STARTED

    @property
    def partition_count(self) -> int:
        return self._there.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self._there.cluster_key

    @property
    def histories(self) -> Histories:
        return self._there.histories

    def read(
        self,
        partition_id: int,
        first: int,
        end: int,
        *,
        wants_data: WantsData | None = None,
        history: UUID | None = None,
    ) -> AsyncGenerator[TransactionColumns, None]:
        return self._iterate(
            self._there.read(partition_id, first, end, wants_data=wants_data, history=history)
        )

    def follow(self, partition_id: int, first: int) -> AsyncGenerator[TransactionColumns, None]:
        return self._iterate(self._there.follow(partition_id, first))
