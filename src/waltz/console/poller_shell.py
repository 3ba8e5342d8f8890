"""Asks the cluster while somebody looks, once for all viewers.

Owns when each process is asked: about once a second, never twice at a time, and not at all while
nobody looks. The picture is made anew after each round from the last answer of each process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from waltz.cli.cluster_list import ClusterMetadata
from waltz.console.answers import (
    CONSUMERS_FRESH_SECONDS,
    COORDINATOR_FRESH_SECONDS,
    NODE_FRESH_SECONDS,
    SERVER_FRESH_SECONDS,
    ClusterAnswers,
    ConsumersTold,
    NodeTold,
    ServerTold,
    Told,
)
from waltz.console.asking_shell import Asker
from waltz.console.marks_history import MarksHistory
from waltz.console.node_figures import figures_in, mean_drain
from waltz.console.picture import ClusterPicture, picture_of
from waltz.errors import WaltzError
from waltz.host import Clock
from waltz.types import Address, PartitionId, ReplicaId

ROUND_SECONDS: Final = 1.0
"""Seconds from one round of questions to the next."""

COORDINATOR_SECONDS: Final = 5.0
"""Seconds between two questions to the coordinator, which reads a node per partition."""

CONSUMERS_SECONDS: Final = 3.0
"""Seconds between two questions for consumers."""

NODE_SECONDS: Final = 2.0
"""Seconds between two questions to one storage node, at least."""

PARTITIONS_PER_SECOND: Final = 100
"""Partitions that one server is asked about per second; each question makes it ask the replicas."""

NODES_PER_SECOND: Final = 10
"""Storage nodes that are asked per second."""

SECONDS_BETWEEN_MAX: Final = 10.0
"""Seconds between two questions to one process, at most, however large the cluster is."""

LINGER_SECONDS: Final = 5.0
"""Seconds for which questions are asked after a page was served: its stream is about to begin."""

FIRST_SECONDS_MAX: Final = 2.0
"""Seconds that the first page waits for answers; it shows what is not there as unknown."""

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K")


class ClusterPoller:
    """The one asker of a console process. `questions` counts the questions asked so far."""

    def __init__(self, clock: Clock, asker: Asker, names: Mapping[str, str]) -> None:
        self._clock = clock
        self._asker = asker
        self._names = names
        self.questions = 0
        self.history = MarksHistory()
        self.number = 0
        """The number of the last picture; 0 before the first."""
        self._coordinator: Told[ClusterMetadata] = Told(fresh_seconds=COORDINATOR_FRESH_SECONDS)
        self._servers: dict[Address, Told[ServerTold]] = {}
        self._nodes: dict[ReplicaId, Told[NodeTold]] = {}
        self._away_at: dict[ReplicaId, float] = {}
        self._consumers: Told[ConsumersTold | None] = Told(fresh_seconds=CONSUMERS_FRESH_SECONDS)
        self._asked: dict[Hashable, float] = {}
        self._under_way: dict[Hashable, asyncio.Task[None]] = {}
        self.last = self.answers()
        self.picture = picture_of(self.last)
        self._viewers = 0
        self._looked_at = float("-inf")
        self._running: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def viewers(self) -> int:
        return self._viewers

    def wall_milliseconds(self) -> int:
        """Return the time of this machine's clock, in milliseconds since 1970."""
        return self._clock.wall_milliseconds()

    def server_of(self, partition_id: PartitionId) -> Address | None:
        """Return the server of a partition as the coordinator told it last; None: it has none."""
        metadata = self._coordinator.answer
        if metadata is None:
            return None
        membership = metadata.membership
        for server_id, held in membership.assignment.servers.items():
            if partition_id in held and server_id in membership.descriptors:
                return membership.descriptors[server_id].address
        return None

    def answers(self) -> ClusterAnswers:
        """Return the answers as they are now; the last picture is made of `last`."""
        now = self._clock.now()
        return ClusterAnswers(
            now,
            self._coordinator,
            dict(self._servers),
            dict(self._nodes),
            self._names,
            self.history.rates(now),
            _known_consumers(self._consumers),
            dict(self._away_at),
        )

    async def look(self, seconds_max: float = FIRST_SECONDS_MAX) -> ClusterPicture:
        """Return the picture now; the first viewer after a pause waits for answers, at most
        `seconds_max`."""
        self._looked_at = self._clock.now()
        was_running = self._running is not None
        self._run()
        if not was_running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds_max):
                    await self._first_answers()
        if self.number == 0 or self._clock.now() - self.last.now > ROUND_SECONDS:
            self._draw()
        return self.picture

    async def pictures(self) -> AsyncGenerator[ClusterPicture, None]:
        """Yield a picture after each round, for as long as the caller looks."""
        with self._watched():
            while True:
                changed = self._changed
                await changed.wait()
                yield self.picture

    async def stop(self) -> None:
        """End all questions. Idempotent."""
        tasks = [*self._under_way.values()]
        if self._running is not None:
            tasks.append(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        self._viewers += 1
        self._run()
        try:
            yield
        finally:
            self._viewers -= 1
            self._looked_at = self._clock.now()

    def _run(self) -> None:
        if self._running is None:
            self._running = asyncio.create_task(self._rounds())

    async def _first_answers(self) -> None:
        """Return once each process that is known has been asked once."""
        while True:
            await self._changed.wait()
            if not self._under_way:
                return

    async def _rounds(self) -> None:
        try:
            while self._viewers or self._clock.now() - self._looked_at < LINGER_SECONDS:
                started = self._clock.now()
                for _ in range(2):  # the coordinator's answer may name processes to ask
                    self._ask_all()
                    if waiting := list(self._under_way.values()):
                        await asyncio.wait(waiting, timeout=ROUND_SECONDS / 3)
                self._publish()
                left = started + ROUND_SECONDS - self._clock.now()
                await asyncio.sleep(max(left, ROUND_SECONDS / 10))
        finally:
            self._running = None

    def _draw(self) -> None:
        """Make the picture anew, once for all viewers."""
        self.last = self.answers()
        self.picture = picture_of(self.last)
        self.number += 1

    def _publish(self) -> None:
        self._draw()
        self.history.note_total(self.last.now, self.picture.rate)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _ask_all(self) -> None:
        """Ask every process whose turn it is, except those that still owe an answer."""
        self._ask("coordinator", COORDINATOR_SECONDS, self._ask_coordinator)
        metadata = self._coordinator.answer
        if metadata is None:
            return
        owned = metadata.membership.assignment.servers
        addresses = set()
        for server_id, descriptor in metadata.membership.descriptors.items():
            address = descriptor.address
            addresses.add(address)
            held = sorted(owned.get(server_id, {}))
            pause = max(ROUND_SECONDS, len(held) / PARTITIONS_PER_SECOND)
            pause = min(pause, SECONDS_BETWEEN_MAX)
            _expect(self._servers, address, SERVER_FRESH_SECONDS + pause)
            self._ask(address, pause, partial(self._ask_server, address, held))
        self._ask("consumers", CONSUMERS_SECONDS, self._ask_consumers)
        nodes = metadata.replicas()
        pause = min(max(NODE_SECONDS, len(nodes) / NODES_PER_SECOND), SECONDS_BETWEEN_MAX)
        for node in nodes:
            _expect(self._nodes, node, NODE_FRESH_SECONDS + pause)
            self._ask(node, pause, partial(self._ask_node, node))
        for gone in self._servers.keys() - addresses:
            del self._servers[gone]
        for left in self._nodes.keys() - {*nodes}:
            del self._nodes[left]
            self._away_at.pop(left, None)

    def _ask(self, key: Hashable, pause: float, ask: Callable[[], Awaitable[None]]) -> None:
        now = self._clock.now()
        is_due = now - self._asked.get(key, float("-inf")) >= pause - ROUND_SECONDS / 4
        if key in self._under_way or not is_due:
            return
        self._asked[key] = now
        self.questions += 1

        async def asked() -> None:
            try:
                await ask()
            except Exception:
                log.exception("question_failed to=%s", key)
            finally:
                self._under_way.pop(key, None)

        self._under_way[key] = asyncio.create_task(asked())

    async def _ask_coordinator(self) -> None:
        self._coordinator = await _told(self._clock, self._coordinator, self._asker.coordinator())

    async def _ask_consumers(self) -> None:
        self._consumers = await _told(self._clock, self._consumers, self._asker.consumers())

    async def _ask_server(self, address: Address, held: list[PartitionId]) -> None:
        before = self._servers[address]
        told = await _told(self._clock, before, self._asker.server(address, held))
        if address not in self._servers:
            return  # it has left the cluster in the meantime
        fresh = self._servers[address].fresh_seconds
        self._servers[address] = replace(told, fresh_seconds=fresh)
        if told.trouble is None and told.answer is not None and told.answer.reports is not None:
            marks = {
                number: report.high_water_mark
                for number, report in told.answer.reports.reports.items()
                if report.high_water_mark is not None
            }
            metadata = self._coordinator.answer
            count = 0 if metadata is None else metadata.partition_count
            self.history.note(self._clock.now(), marks, count)

    async def _ask_node(self, node: ReplicaId) -> None:
        metadata = self._coordinator.answer
        assert metadata is not None, "the coordinator has named the node"
        before = self._nodes[node]

        async def answer() -> NodeTold:
            report = await self._asker.node(node, metadata)
            figures = figures_in(report.metrics_json)
            earlier = None if before.answer is None else before.answer.figures
            # The text is read; kept for every node it would be megabytes.
            return NodeTold(
                replace(report, metrics_json=None), figures, mean_drain(earlier, figures)
            )

        told = await _told(self._clock, before, answer())
        if node in self._nodes:
            self._nodes[node] = replace(told, fresh_seconds=self._nodes[node].fresh_seconds)
            was_away = before.answer is not None and before.answer.report.trouble is not None
            if was_away and before.asked_at is not None:
                self._away_at[node] = before.asked_at


def _known_consumers(told: Told[ConsumersTold | None]) -> Told[ConsumersTold] | None:
    """Return what is known of consumers; None: nobody tells of them."""
    if told.answer is None and told.trouble is None:
        return None
    return Told(told.answer, told.asked_at, told.trouble, told.fresh_seconds)


def _expect(told: dict[K, Told[T]], key: K, fresh_seconds: float) -> None:
    """Have the answers of a process count for so long: it is asked the less often the more there
    is to ask, and that changes while it runs."""
    before = told.get(key)
    told[key] = replace(before or Told(), fresh_seconds=fresh_seconds)


async def _told(clock: Clock, before: Told[T], asking: Awaitable[T]) -> Told[T]:
    """Return the answer with the time of its question; an error becomes the trouble."""
    asked_at = clock.now()
    try:
        return replace(before, answer=await asking, asked_at=asked_at, trouble=None)
    except WaltzError as error:
        return replace(before, trouble=str(error) or type(error).__name__)
    except Exception as error:
        log.exception("question_failed")
        return replace(before, trouble=f"the console failed to ask: {error!r}")
