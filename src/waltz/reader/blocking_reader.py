"""The reader for threads: the same verbs, run by a loop in one background thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any
from uuid import UUID

from waltz.connections.loop_thread import OPEN, Closable, LoopThread, NewHost, close_in_time
from waltz.connections.retry import RetryPolicy
from waltz.errors import ClientClosedError, LocalProtocolError
from waltz.limits import CLIENT_CLOSE_SECONDS, READER_SECONDS_MAX
from waltz.reader.reader_shell import AsyncLogReader, WantsData
from waltz.reader.transaction_columns import TransactionColumns
from waltz.types import Address, TransactionId


class LogReader(Closable):
    """Reads the log as columns, for threads; a context manager.

    Without a state of its own: every read says where it starts. Used by Spark's tasks and by tools.
    """

    def __init__(
        self,
        new_host: NewHost,
        *,
        timeout_seconds: float = READER_SECONDS_MAX,
        root: str | None = None,
        servers: Sequence[Address] = (),
        thread: LoopThread | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        """`thread`: where it runs if not as usual.

        Raises NoNodeError: there is no cluster. CoordinatorLostError. With `servers`
        ConnectionFailedError: none of them in time; RemoteProtocolError: no server of ours.
        """
        self._thread = thread or LoopThread("waltz-reader")
        try:
            self._core = self._thread.call(
                _open_reader(
                    new_host,
                    timeout_seconds=timeout_seconds,
                    root=root,
                    servers=servers,
                    retry_policy=retry_policy,
                )
            )
        except BaseException:
            self._thread.stop()
            raise
        OPEN[self] = None

    @property
    def partition_count(self) -> int:
        return self._core.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self._core.cluster_key

    def high_water_mark(self, partition_id: int) -> TransactionId:
        """Return the last transaction in the partition's log, -1 for none.

        Raises NotFoundError; UnavailableError: no server answered in time.
        """
        return self._thread.call(self._core.high_water_mark(partition_id))

    def read(
        self,
        partition_id: int,
        first: int,
        end: int,
        *,
        wants_data: WantsData | None = None,
    ) -> Generator[TransactionColumns, None, None]:
        """Yield the transactions from `first` to `end` - 1: dense, in order, complete.

        Fetches ahead. With `wants_data`, a function of many headers that says for which of them
        the data is wanted, the others' is empty and not fetched. Raises NotFoundError: no such
        partition, or the log ends before `end`; UnavailableError: no progress for
        `timeout_seconds`; LocalProtocolError: not a range.
        """
        return self._iterate(self._core.read(partition_id, first, end, wants_data=wants_data))

    def follow(self, partition_id: int, first: int) -> Generator[TransactionColumns, None, None]:
        """Yield the transactions from `first` on as they come, for ever.

        Raises NotFoundError, ClientAheadError: the log ends before `first` - 1; UnavailableError.
        """
        return self._iterate(self._core.follow(partition_id, first))

    def _iterate(
        self, columns: AsyncGenerator[TransactionColumns, None]
    ) -> Generator[TransactionColumns, None, None]:
        async def advance() -> TransactionColumns | None:
            return await anext(columns, None)

        try:
            while (found := self._thread.call(advance())) is not None:
                yield found
        finally:
            try:
                self._thread.call(columns.aclose())
            except (ClientClosedError, LocalProtocolError):
                pass  # closed with its reader, or not this process's to close

    def close(self) -> None:
        """Idempotent; in a forked process it does nothing. One left open ends with the process."""
        OPEN.pop(self, None)
        close_in_time(self._thread, self._core.close(), CLIENT_CLOSE_SECONDS)


async def _open_reader(new_host: NewHost, **options: Any) -> AsyncLogReader:
    host, release_host = new_host()
    reader = AsyncLogReader(host, release_host=release_host, **options)
    await reader.start()
    return reader
