"""Clients and readers for asyncio, of a cluster in memory that runs on a loop of its own.

Owns the way from the application's loop, whichever it is, to the cluster's and back. What they do
is the product's own: every verb is one of an `AsyncWaltzClient` or `AsyncLogReader` over there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar, Unpack
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from waltz.client.appends.submission import Submission
from waltz.client.applying.blocked import BlockedPartition
from waltz.client.bulk import RowColumns
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import Lock, TransactionContext
from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.errors import ClientClosedError, UnavailableError
from waltz.operators.questions_shell import ServerReport
from waltz.reader.reader_shell import AsyncLogReader, WantsData
from waltz.reader.transaction_columns import TransactionColumns
from waltz.testing.paced_loop import SharedThread
from waltz.types import NOTHING, Address, ClientId, PartitionId, RequestId, TransactionId

T = TypeVar("T")


class AsyncTestClient(AsyncWaltzClient):
    """An `AsyncWaltzClient` for any loop: started by entering it, closed by leaving it."""

    def __init__(
        self,
        thread: SharedThread,
        options: ClientOptions,
        new_client: Callable[[], AsyncWaltzClient],
    ) -> None:
        """`new_client` is called on the cluster's loop: what the client is made of belongs there,
        and nothing of it is made here."""
        self.options = options
        self._thread = thread
        self._new_client = new_client
        self._client: AsyncWaltzClient | None = None

    @property
    def _there(self) -> AsyncWaltzClient:
        assert self._client is not None, "started"
        return self._client

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._thread.begin(work))

    async def start(self) -> None:
        async def start() -> AsyncWaltzClient:
            client = self._new_client()
            await client.start()
            return client

        self._client = await self._do(start())

    async def close(self) -> None:
        with contextlib.suppress(ClientClosedError):  # with its cluster, before
            await self._do(self.close_there())

    async def close_there(self) -> None:
        """Close it; to be called on the cluster's loop."""
        if self._client is not None:
            await self._client.close()

    @property
    def client_id(self) -> ClientId:
        return self._there.client_id

    @property
    def snapshot(self) -> ClusterSnapshot:
        return self._there.snapshot

    @property
    def partition_count(self) -> int:
        return self._there.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self._there.cluster_key

    @property
    def cluster_name(self) -> str:
        return self._there.cluster_name

    @property
    def connected_servers(self) -> frozenset[Address]:
        return self._there.connected_servers

    def has_pending_transactions(self) -> bool:
        return self._there.has_pending_transactions()

    def client_high_water_mark(self, partition_id: int) -> TransactionId:
        return self._there.client_high_water_mark(partition_id)

    def blocked_partitions(self) -> dict[PartitionId, BlockedPartition]:
        return self._there.blocked_partitions()

    def active_partitions(self) -> list[PartitionId]:
        return self._there.active_partitions()

    def parked_transactions(self) -> dict[PartitionId, int]:
        return self._there.parked_transactions()

    async def wait_until_applied(
        self,
        *,
        partitions: Collection[int] | None = None,
        timeout_seconds: float | None = None,
    ) -> dict[PartitionId, TransactionId]:
        return await self._do(
            self._there.wait_until_applied(partitions=partitions, timeout_seconds=timeout_seconds)
        )

    async def get_high_water_mark(
        self, partition_id: int, timeout_seconds: float | None = None
    ) -> TransactionId:
        return await self._do(self._there.get_high_water_mark(partition_id, timeout_seconds))

    async def ask_servers(self) -> dict[Address, ServerReport | UnavailableError]:
        return await self._do(self._there.ask_servers())

    async def prefer_partitions(
        self, server: Address, *, add: Sequence[int] = (), remove: Sequence[int] = ()
    ) -> bool:
        return await self._do(self._there.prefer_partitions(server, add=add, remove=remove))

    async def set_partitions(self, partitions: Collection[int]) -> None:
        await self._do(self._there.set_partitions(partitions))

    async def submit(
        self,
        context: TransactionContext,
        *,
        on_finished: Callable[[Submission, Exception | None], None] | None = None,
    ) -> None:
        await self._do(self._there.submit(context, on_finished=on_finished))

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
        return await self._do(
            self._there.append(
                partition_id,
                data,
                header=header,
                write_locks=write_locks,
                read_locks=read_locks,
                append_locks=append_locks,
                timeout_seconds=timeout_seconds,
            )
        )

    async def append_many(
        self,
        partition_id: int,
        data: Sequence[bytes],
        *,
        timeout_seconds: float | None = None,
        **columns: Unpack[RowColumns],
    ) -> NDArray[np.int64]:
        return await self._do(
            self._there.append_many(partition_id, data, timeout_seconds=timeout_seconds, **columns)
        )

    async def outcome(
        self, request_id: RequestId, after: int = NOTHING, *, timeout_seconds: float | None = None
    ) -> TransactionId | None:
        there = self._there.outcome(request_id, after, timeout_seconds=timeout_seconds)
        return await self._do(there)

    async def flush(self, timeout_seconds: float | None = None) -> None:
        await self._do(self._there.flush(timeout_seconds))


class AsyncTestReader(AsyncLogReader):
    """An `AsyncLogReader` for any loop."""

    def __init__(self, thread: SharedThread, new_reader: Callable[[], AsyncLogReader]) -> None:
        """`new_reader` is called on the cluster's loop."""
        self._thread = thread
        self._new_reader = new_reader
        self._reader: AsyncLogReader | None = None

    @property
    def _there(self) -> AsyncLogReader:
        assert self._reader is not None, "started"
        return self._reader

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._thread.begin(work))

    async def start(self) -> None:
        async def start() -> AsyncLogReader:
            reader = self._new_reader()
            await reader.start()
            return reader

        self._reader = await self._do(start())

    async def close(self) -> None:
        with contextlib.suppress(ClientClosedError):  # with its cluster, before
            await self._do(self.close_there())

    async def close_there(self) -> None:
        """Close it; to be called on the cluster's loop."""
        if self._reader is not None:
            await self._reader.close()

    @property
    def partition_count(self) -> int:
        return self._there.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self._there.cluster_key

    async def high_water_mark(self, partition_id: int) -> TransactionId:
        return await self._do(self._there.high_water_mark(partition_id))

    async def read(
        self,
        partition_id: int,
        first: int,
        end: int,
        *,
        wants_data: WantsData | None = None,
    ) -> AsyncGenerator[TransactionColumns, None]:
        there = self._there.read(partition_id, first, end, wants_data=wants_data)
        async for columns in self._iterate(there):
            yield columns

    async def follow(
        self, partition_id: int, first: int
    ) -> AsyncGenerator[TransactionColumns, None]:
        async for columns in self._iterate(self._there.follow(partition_id, first)):
            yield columns

    async def _iterate(
        self, there: AsyncGenerator[TransactionColumns, None]
    ) -> AsyncGenerator[TransactionColumns, None]:
        async def advance() -> TransactionColumns | None:
            return await anext(there, None)

        try:
            while (found := await self._do(advance())) is not None:
                yield found
        finally:
            await self._do(there.aclose())
