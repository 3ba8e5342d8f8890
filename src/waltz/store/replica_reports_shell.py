"""Reports on the replicas of one partition: by what they said lately, or by asking them now.

Owns the words of the replicas and the looks at them. Decides nothing: `standing.py` says what
follows from words.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final

from waltz.errors import WaltzError
from waltz.host import Clock
from waltz.store.messages import RequestFrames
from waltz.store.requests import AskCondition, ReplicaLink
from waltz.store.session_keeper import SessionKeeper
from waltz.store.standing import ReplicaWords, StoreReport
from waltz.store.storage_connections_shell import StorageExchange
from waltz.wire.storage_protocol import StorageMessage

REPLICA_WORD_SECONDS_MAX: Final = 15.0
"""The age up to which a replica's word on itself is believed by `/health` and `/metrics`: three
times the pause between two looks at it (REPAIR_LOOK_SECONDS)."""

REPLICA_LOOK_SECONDS_MAX: Final = 2.0
"""Time that a server waits for the words of replicas when a tool asks."""

REPLICA_LOOK_SECONDS_MIN: Final = 0.2
"""From the beginning of a look at the replicas of a partition, which a tool has asked for, to the
next."""


class ReplicaReports:
    """The reports on one partition's store; `exchanges` are the connections to its replicas."""

    def __init__(
        self,
        clock: Clock,
        keeper: SessionKeeper,
        exchanges: Mapping[ReplicaLink, StorageExchange],
        frames: RequestFrames,
        start: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        self.words = ReplicaWords()
        self.opened_at = 0.0
        """The time at which the store session that is open now, or was the last, has opened."""
        self._clock = clock
        self._keeper = keeper
        self._exchanges = exchanges
        self._frames = frames
        self._start = start
        self._look: asyncio.Task[None] | None = None
        self._looked_at: float | None = None
        """The beginning of the last look that has ended."""

    def report(self) -> StoreReport:
        """Return what replicas have said of themselves lately, unasked; waits for nothing."""
        return self._report_since(self._clock.now() - REPLICA_WORD_SECONDS_MAX)

    async def look(self) -> StoreReport:
        """Ask every replica that takes part, and return what they say; one that does not answer in
        `REPLICA_LOOK_SECONDS_MAX` is reported as silent. Nothing is returned that was said before
        the call; all who ask during a look share the next one, and looks keep a pause."""
        asked_at = self._clock.now()
        while self._looked_at is None or self._looked_at < asked_at:
            if self._look is None or self._look.done():
                self._look = self._start(self._ask_replicas())
            await asyncio.wait([self._look])
            if self._look.cancelled():
                break  # the partition was closed
        return self._report_since(asked_at)

    def _report_since(self, not_before: float) -> StoreReport:
        now = self._clock.now()
        return self._keeper.report(self.words, now, not_before=not_before, opened_at=self.opened_at)

    async def _ask_replicas(self) -> None:
        if self._looked_at is not None:
            pause = self._looked_at + REPLICA_LOOK_SECONDS_MIN - self._clock.now()
            await asyncio.sleep(max(0.0, pause))
        began = self._clock.now()
        waiting: set[ReplicaLink] = set()
        is_over = asyncio.Event()
        request = AskCondition(0)

        def done(link: ReplicaLink, result: StorageMessage | WaltzError) -> None:
            if (exchange := self._exchanges.get(link)) is not None:
                now, said = self._clock.now(), exchange.says_refusal
                self.words.hear(link.replica_id, request, result, now, says_refusal=said)
            waiting.discard(link)
            if not waiting:
                is_over.set()

        for link, exchange in list(self._exchanges.items()):
            if exchange.is_repairable and exchange.ended is None:
                self.words.asked(link.replica_id, self._keeper.high_water_mark)
                waiting.add(link)
                frame = partial(self._frames.frame, request, link)
                exchange.request(frame, partial(done, link))
        if waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPLICA_LOOK_SECONDS_MAX):
                    await is_over.wait()
        self._looked_at = began
