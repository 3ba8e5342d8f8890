"""Faults of a cluster for tests, and the client that suffers them.

Owns which appends are lost and refused and when the feed is held back. All of these happen to
clients of a real cluster now and then; the product's own code handles them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from random import Random
from typing import Any

import numpy as np

from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.client_options import ClientOptions
from waltz.client.engine_shell import ClientEngine
from waltz.client.partitions.client_partition_events import FlushWanted, Received
from waltz.client.partitions.partition_runner_shell import Send
from waltz.client.partitions.streams_shell import StreamSide
from waltz.errors import ConfigurationError, LocalProtocolError
from waltz.host import Host
from waltz.types import RequestId, TransactionId
from waltz.wire.batch_protocol import AppendBatch, AppendRejected, Reason, Rejection
from waltz.wire.client_protocol import MountResponse
from waltz.wire.columns import AppendColumns, Bodies
from waltz.wire.message import Message


class Faults:
    """Switches that any thread may turn at any time (PM-62)."""

    def __init__(self, seed: int = 0) -> None:
        """`seed`: the seed of chances and delays."""
        self._lock = threading.Lock()
        self._random = Random(seed)
        self._max_delay_seconds = 0.0
        self._fault_rate = 0.0
        self._appends_to_lose = 0
        self._locks_to_refuse = 0
        self._suspended = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def max_delay_seconds(self) -> float:
        """The longest delay of what a server sends; each delay is drawn anew."""
        return self._max_delay_seconds

    @max_delay_seconds.setter
    def max_delay_seconds(self, seconds: float) -> None:
        if not 0.0 <= seconds <= 60.0:
            raise ConfigurationError(f"max_delay_seconds is {seconds}; expected 0 to 60")
        self._max_delay_seconds = seconds

    @property
    def fault_rate(self) -> float:
        """The share of appends that are lost on their way; the client finds out and retries."""
        return self._fault_rate

    @fault_rate.setter
    def fault_rate(self, share: float) -> None:
        if not 0.0 <= share < 1.0:
            raise ConfigurationError(f"fault_rate is {share}; expected 0 to less than 1")
        self._fault_rate = share

    def fail_next_append(self, count: int = 1) -> None:
        """Lose the next `count` appends."""
        with self._lock:
            self._appends_to_lose += count

    def fail_next_lock(self, count: int = 1) -> None:
        """Refuse the next `count` appends that have a read or a write lock."""
        with self._lock:
            self._locks_to_refuse += count

    def suspend_feed(self) -> None:
        """Hold back what the streams bring: nothing is committed or applied until `resume_feed`."""
        with self._lock:
            self._suspended = True

    def resume_feed(self) -> None:
        """Let everything through that was held back, in order, and everything after it."""
        with self._lock:
            self._suspended = False
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    # For clients

    def loses(self) -> bool:
        """Return whether the next append is lost."""
        with self._lock:
            if self._appends_to_lose:
                self._appends_to_lose -= 1
                return True
            return self._random.random() < self._fault_rate

    def refuses(self, locks: Sequence[int]) -> bool:
        """Return whether the next append, with these read and write locks, is refused."""
        with self._lock:
            refused = bool(self._locks_to_refuse and locks)
            self._locks_to_refuse -= refused
            return refused

    async def hold_up(self) -> None:
        """Wait for the drawn delay, and until the feed is not suspended."""
        if self._max_delay_seconds:
            with self._lock:
                seconds = self._random.uniform(0.0, self._max_delay_seconds)
            await asyncio.sleep(seconds)
        while True:
            with self._lock:
                if not self._suspended:
                    return
                event = asyncio.Event()
                self._waiting.append((asyncio.get_running_loop(), event))
            await event.wait()


class _FaultyStreamSide(StreamSide):
    def __init__(self, runners: Any, faults: Faults) -> None:
        super().__init__(runners)
        self._faults = faults

    async def receive(self, connection_sequence: int, messages: Sequence[Message]) -> None:
        """Let the answers to mounts through, which come before the feed, and hold up the rest."""
        mounts = list(takewhile(lambda each: isinstance(each, MountResponse), messages))
        if mounts:
            await super().receive(connection_sequence, mounts)
        if rest := messages[len(mounts) :]:
            await self._faults.hold_up()
            await super().receive(connection_sequence, rest)


class FaultyEngine(ClientEngine):
    """The engine of a client, with faults between it and its servers."""

    def __init__(
        self,
        host: Host,
        callbacks: WaltzClientCallbacks,
        options: ClientOptions,
        release_host: Callable[[], None] | None = None,
        *,
        faults: Faults,
    ) -> None:
        self._faults = faults
        super().__init__(host, callbacks, options, release_host)

    def new_stream_side(self) -> StreamSide:
        return _FaultyStreamSide(self.runners, self._faults)

    def new_sender(self, send: Send) -> Send:
        return partial(self._send_with_faults, send)

    def _send_with_faults(
        self, send: Send, connection_sequence: int, messages: Sequence[Message]
    ) -> list[tuple[Message, LocalProtocolError]]:
        kept: list[Message] = []
        for message in messages:
            if isinstance(message, AppendBatch):
                kept += self._let_through(connection_sequence, message)
            else:
                kept.append(message)
        return send(connection_sequence, kept)

    def _let_through(self, connection_sequence: int, batch: AppendBatch) -> list[AppendBatch]:
        """Return the appends of `batch` that reach the server, as batches of consecutive
        appends."""
        first, appends = batch.request_id, batch.appends
        ends = np.cumsum(appends.lock_counts.sum(axis=1)).tolist()
        starts = [0, *ends]
        kept: list[AppendBatch] = []
        begin = 0
        for row, (writes, reads, _) in enumerate(appends.lock_counts.tolist()):
            request_id = first._replace(sequence_number=first.sequence_number + row)
            mark = TransactionId(int(appends.client_high_water_marks[row]))
            locks = appends.lock_hashes[starts[row] : starts[row] + writes + reads].tolist()
            if self._is_stopped(connection_sequence, request_id, mark, locks):
                kept += _part(batch, begin, row, starts)
                begin = row + 1
        return [batch] if not begin else [*kept, *_part(batch, begin, len(appends), starts)]

    def _is_stopped(
        self,
        connection_sequence: int,
        request_id: RequestId,
        mark: TransactionId,
        locks: Sequence[int],
    ) -> bool:
        """Return whether a fault stops the append. `locks`: the hashes of those that can be
        refused."""
        mailbox = self.runners[request_id.partition_id].mailbox
        if self._faults.refuses(locks):
            rejection = Rejection(request_id.sequence_number, 1, Reason.LOCKED, mark, locks[0])
            refusal = AppendRejected(request_id, (rejection,))
            mailbox.put(Received(connection_sequence, [refusal]))
            return True
        if self._faults.loses():
            # Asked for at once: a real client asks after a while without an answer.
            asyncio.get_running_loop().call_soon(partial(mailbox.put, FlushWanted()))
            return True
        return False


def _part(batch: AppendBatch, begin: int, end: int, starts: Sequence[int]) -> list[AppendBatch]:
    """Return the appends from `begin` to before `end`; `starts` has the index of each append's
    first lock."""
    if begin == end:
        return []
    first, all_of, rows = batch.request_id, batch.appends, slice(begin, end)
    columns = AppendColumns(
        all_of.client_high_water_marks[rows],
        all_of.headers[rows],
        all_of.lock_counts[rows],
        all_of.lock_hashes[starts[begin] : starts[end]],
        Bodies(all_of.bodies.data[rows], all_of.bodies.checksums[rows]),
    )
    request_id = first._replace(sequence_number=first.sequence_number + begin)
    return [AppendBatch(request_id, columns)]
