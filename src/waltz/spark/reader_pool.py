"""Readers of the log that a Python worker keeps from task to task.

Spark uses a worker process again for the next task. Opening a reader costs a thread, a loop and
connections, so that one that is given back waits a while for the next task of the same cluster.
A fork has no threads of its parent: what it did not open itself it does not use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from waltz.types import TlsSettings

if TYPE_CHECKING:
    from waltz import LogReader

IDLE_READERS_MAX: Final = 4
"""Readers of one process that wait for a task; the one that waits longest gives way."""

IDLE_READER_SECONDS: Final = 30.0
"""The longest that a reader waits for a task."""

Open: TypeAlias = "Callable[[], LogReader]"


@dataclass(frozen=True, slots=True)
class ReaderKey:
    """The marks of a reader: a task takes only one of its own cluster, process and files."""

    cluster: str
    tls: TlsSettings
    cluster_key: UUID
    open_reader: object
    process_id: int


class ReaderPool:
    """The idle readers of a process. For any number of threads."""

    def __init__(self, idle_max: int = IDLE_READERS_MAX) -> None:
        self._idle_max = idle_max
        self._idle: list[tuple[ReaderKey, LogReader, threading.Timer]] = []
        self._lock = threading.Lock()
        self._process_id = os.getpid()

    @contextmanager
    def lent(self, key: ReaderKey, open_reader: Open) -> Iterator[LogReader]:
        """Lend an idle reader, or the one that `open_reader` returns, for the block.

        A reader whose block fails is closed, and so is one of another cluster than the key's: the
        block sees it, and nobody after.
        """
        reader = self._take(key) or open_reader()
        try:
            yield reader
        except BaseException:
            reader.close()
            raise
        if reader.cluster_key == key.cluster_key:
            self._give_back(key, reader)
        else:
            reader.close()

    def close(self) -> None:
        """Close all that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, reader, timer in idle:
            timer.cancel()
            reader.close()

    def _take(self, key: ReaderKey) -> LogReader | None:
        if os.getpid() != self._process_id:
            self._begin_anew()
        with self._lock:
            for place, (its_key, reader, timer) in enumerate(self._idle):
                if its_key == key:
                    del self._idle[place]
                    timer.cancel()
                    return reader
        return None

    def _begin_anew(self) -> None:
        """Forget what the parent of this process had: its threads did not come along."""
        self._lock = threading.Lock()
        self._idle = []
        self._process_id = os.getpid()

    def _give_back(self, key: ReaderKey, reader: LogReader) -> None:
        timer = threading.Timer(IDLE_READER_SECONDS, self._expire, (reader,))
        timer.daemon = True
        with self._lock:
            self._idle.append((key, reader, timer))
            gone = self._idle[: -self._idle_max]
            del self._idle[: -self._idle_max]
        timer.start()
        for _, oldest, waiting in gone:
            waiting.cancel()
            oldest.close()

    def _expire(self, reader: LogReader) -> None:
        with self._lock:
            kept = [each for each in self._idle if each[1] is not reader]
            was_idle = len(kept) < len(self._idle)
            self._idle = kept
        if was_idle:
            reader.close()


POOL: Final = ReaderPool()
"""That of this process."""
