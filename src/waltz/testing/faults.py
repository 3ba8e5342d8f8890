"""What can be made to go wrong in a cluster for tests, and the client to which it happens.

Owns which appends are lost and refused and when the feed is held back. All of it is what a client
of a real cluster sees now and then; what follows from it is done by the product's own code.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from random import Random
from typing import Any

from waltz.client.callbacks import WaltzClientCallbacks
from waltz.client.options import ClientOptions
from waltz.client.partition_events import FlushWanted, Received
from waltz.client.shell import AsyncWaltzClient
from waltz.client.streams.shell import StreamSide
from waltz.errors import ConfigurationError, LocalProtocolError
from waltz.host import Host
from waltz.types import PartitionId
from waltz.wire.client_protocol import AppendRequest, LockFailure, MountResponse
from waltz.wire.message import Message


class Faults:
    """Knobs that any thread may turn at any time (PM-62)."""

    def __init__(self, seed: int = 0) -> None:
        """`seed`: what chances and delays are drawn from."""
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
        """The longest time, drawn anew each time, that what a server sends is held up."""
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
        """Lose the next appends, so many of them."""
        with self._lock:
            self._appends_to_lose += count

    def fail_next_lock(self, count: int = 1) -> None:
        """Refuse the next appends that have a read or a write lock, so many of them."""
        with self._lock:
            self._locks_to_refuse += count

    def suspend_feed(self) -> None:
        """Hold back what the streams bring: nothing is committed or applied until `resume_feed`."""
        with self._lock:
            self._suspended = True

    def resume_feed(self) -> None:
        with self._lock:
            self._suspended = False
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    # For clients

    def loses(self, message: AppendRequest) -> bool:
        with self._lock:
            if self._appends_to_lose:
                self._appends_to_lose -= 1
                return True
            return self._random.random() < self._fault_rate

    def refuses(self, message: AppendRequest) -> bool:
        with self._lock:
            refused = bool(self._locks_to_refuse and (message.write_locks or message.read_locks))
            self._locks_to_refuse -= refused
            return refused

    async def hold_up(self) -> None:
        """Return once what has come may go on."""
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


class FaultyClient(AsyncWaltzClient):
    """The client, with faults between it and its servers.

    It speaks version 4 of the protocol, where each append is a message of its own, which can be
    lost or refused without the others.
    """

    def __init__(
        self,
        host: Host,
        callbacks: WaltzClientCallbacks,
        options: ClientOptions,
        *,
        faults: Faults,
        **others: Any,
    ) -> None:
        self._faults = faults
        version = min(4, options.protocol_version_max)
        options = replace(options, protocol_version_max=version)
        super().__init__(host, callbacks, options, **others)

    def new_stream_side(self) -> StreamSide:
        return _FaultyStreamSide(self.runners, self._faults)

    def send(
        self, connection_sequence: int, messages: Sequence[Message]
    ) -> list[tuple[Message, LocalProtocolError]]:
        kept = [each for each in messages if not self._is_stopped(connection_sequence, each)]
        return super().send(connection_sequence, kept)

    def _is_stopped(self, connection_sequence: int, message: Message) -> bool:
        if not isinstance(message, AppendRequest):
            return False
        mailbox = self.runners[PartitionId(message.request_id.partition_id)].mailbox
        if self._faults.refuses(message):
            refusal = LockFailure(message.request_id, message.client_high_water_mark)
            mailbox.put(Received(connection_sequence, [refusal]))
            return True
        if self._faults.loses(message):
            # Asked for at once: a real client asks when nothing has come for a while.
            asyncio.get_running_loop().call_soon(partial(mailbox.put, FlushWanted()))
            return True
        return False
