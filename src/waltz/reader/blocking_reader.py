"""The reader for threads: the same verbs, run by a loop in one background thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from waltz.cluster.histories import Histories
from waltz.connections.loop_thread import FaceForThreads, LoopThread, NewHost, blocking, iterating
from waltz.connections.retry import RetryPolicy
from waltz.limits import CLIENT_CLOSE_SECONDS, READER_SECONDS_MAX
from waltz.reader.reader_shell import AsyncLogReader
from waltz.types import Address


class LogReader(FaceForThreads[AsyncLogReader]):
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
        name: str = "",
        instance: str = "",
        program: str = "",
    ) -> None:
        """`thread`: where it runs if not as usual. `name`, `instance` and `program` as for clients.

        Raises NoNodeError: there is no cluster. CoordinatorLostError. With `servers`
        ConnectionFailedError: none of them in time; RemoteProtocolError: no server of ours.
        """
        super().__init__(
            thread or LoopThread("waltz-reader"),
            _open_reader(
                new_host,
                timeout_seconds=timeout_seconds,
                root=root,
                servers=servers,
                retry_policy=retry_policy,
                name=name,
                instance=instance,
                program=program,
            ),
        )

    @property
    def partition_count(self) -> int:
        return self._there.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self._there.cluster_key

    @property
    def histories(self) -> Histories:
        """The histories of the log. As of the newest connection to a server: none is used before
        its histories were taken in, so that these are not older than any answer."""
        return self._there.histories

    high_water_mark = blocking(AsyncLogReader.high_water_mark)
    high_water_marks = blocking(AsyncLogReader.high_water_marks)
    require_attested = blocking(AsyncLogReader.require_attested)
    read = iterating(AsyncLogReader.read)
    follow = iterating(AsyncLogReader.follow)

    def close(self) -> None:
        """Idempotent; in a forked process it does nothing. One left open ends with the process."""
        self._close_in_time(self._there.close(), CLIENT_CLOSE_SECONDS)


async def _open_reader(new_host: NewHost, **options: Any) -> AsyncLogReader:
    host, release_host = new_host()
    reader = AsyncLogReader(host, release_host=release_host, **options)
    await reader.start()
    return reader
