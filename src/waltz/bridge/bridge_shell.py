"""Runs a bridge: a reader of the log on the one side, a destination on the other.

Owns the waiting. What a partition does next is decided by `delivery.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import waltz
from waltz.bridge.bridge_metrics import BridgeFigures, PartitionFigures
from waltz.bridge.bridge_progress import PartitionProgress, check_history, check_place
from waltz.bridge.delivery import (
    ONCE_ATTEMPTS_MAX,
    RETRY_SECONDS_MIN,
    Abandon,
    Accepted,
    CaughtUp,
    Delivery,
    Effect,
    Event,
    Failed,
    Post,
    Refused,
    Save,
    Saved,
    Sending,
    StopAsked,
)
from waltz.bridge.destination_shell import (
    Available,
    DeliveryFailedError,
    Destination,
    Lane,
    LogEnds,
    ReplacedError,
)
from waltz.errors import (
    AttestationError,
    ClientClosedError,
    ClusterChangedError,
    ConfigurationError,
    CorruptionError,
    HistoryChangedError,
    NotFoundError,
    PermissionDeniedError,
    WaltzError,
)
from waltz.host import Host
from waltz.machine_shell import Mailbox, run
from waltz.types import PartitionId

log = logging.getLogger(__name__)

EVENTS_MAX: Final = 100
"""Events that may wait for a partition's machine; it has one effect under way at a time."""

FINAL_ERRORS: Final = (
    AttestationError,
    ClientClosedError,
    ClusterChangedError,
    ConfigurationError,
    CorruptionError,
    HistoryChangedError,
    NotFoundError,
    PermissionDeniedError,
    ReplacedError,
)
"""Errors that no further attempt of this process can mend."""


@dataclass(frozen=True, slots=True)
class BridgeOptions:
    """The ways of a bridge.

    partitions         None: all that the cluster has.
    begins_with_first  whether a partition of no progress begins with its first transaction.
    is_once            end with what the log has at the start.
    """

    partitions: tuple[int, ...] | None
    begins_with_first: bool
    retry_seconds_max: float
    connections_max: int
    is_once: bool


class BridgeProcess:
    """Posts until it is stopped. Implements the methods of every kind of process."""

    def __init__(
        self,
        host: Host,
        destination: Destination,
        open_reader: Callable[[], waltz.AsyncLogReader],
        options: BridgeOptions,
    ) -> None:
        self._host = host
        self._destination = destination
        self._open_reader = open_reader
        self._options = options
        self._stopping = asyncio.Event()
        self._done = asyncio.Event()
        self._partitions: list[PartitionBridge] = []
        self._cluster_key = ""
        self._trouble: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether a bridge that runs once has posted all that it was to post."""
        return bool(self._partitions) and all(each.machine.is_complete for each in self._partitions)

    async def start(self) -> None:
        """Make the progress this process's. Raises DirectoryInUseError: another process has it;
        OSError."""
        await self._destination.start()

    async def run(self) -> None:
        """Return once all partitions have ended. Raises the error that no attempt can mend."""
        try:
            await self._run()
        except BaseException as error:
            if isinstance(error, Exception):
                log.error("bridge_failed error=%s", error)
            raise
        finally:
            self._destination.end()
            self._done.set()

    async def stop(self) -> None:
        """Have the partitions end, and return once they have: a post under way has a few
        seconds."""
        self._stopping.set()
        for each in self._partitions:
            each.put(StopAsked())
        await self._done.wait()

    def figures(self) -> BridgeFigures:
        """Return what is known now."""
        return BridgeFigures(
            self._cluster_key,
            self._destination.receiver,
            tuple(each.figures() for each in self._partitions),
            self._trouble,
        )

    async def _run(self) -> None:
        pause, attempts = RETRY_SECONDS_MIN, 0
        while not self._stopping.is_set():
            try:
                reader = self._open_reader()
                try:
                    if await self._unless_stopped(self._begin(reader)):
                        await self._bridge()
                    return
                finally:
                    await reader.close()
            except FINAL_ERRORS:
                raise
            except (DeliveryFailedError, WaltzError, OSError) as error:
                if self._partitions:
                    raise
                log.warning("bridge_waits error=%s", error)
                self._trouble = str(error)
                attempts += 1
                if self._options.is_once and attempts >= ONCE_ATTEMPTS_MAX:
                    return
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                pause = min(2 * pause, self._options.retry_seconds_max)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Return whether `work` has ended before the bridge was told to stop, which cancels it.
        Raises its error."""
        working = asyncio.create_task(work)
        told = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({working, told}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if working.done():
            await working
            return not self._stopping.is_set()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return False

    async def _begin(self, reader: waltz.AsyncLogReader) -> None:
        """Compare the progress with the log, and make the partitions ready. Raises the reader's
        errors; HistoryChangedError; OSError."""
        await reader.start()
        options = self._options
        named = options.partitions or tuple(range(reader.partition_count))
        numbers = [PartitionId(each) for each in named]
        # A reader knows the histories once a server has told a mark.
        marks = await reader.high_water_marks(numbers)
        key, destination = reader.cluster_key, self._destination
        lanes = await destination.begin(
            LogEnds(key, reader.histories.current, marks), with_first=options.begins_with_first
        )
        self._cluster_key = str(key)
        try:
            for number in numbers:
                place, remedy = lanes[number].place, destination.remedy
                check_place(reader.histories, number, place, marks[number], remedy)
        except BaseException:
            for lane in lanes.values():
                await lane.close()
            raise
        room = asyncio.Semaphore(options.connections_max)
        self._partitions = [
            PartitionBridge(
                self._host, reader, destination, lanes[each], options, each, room,
                marks[each] + 1 if options.is_once else None,
            )
            for each in numbers
        ]  # fmt: skip
        log.info(
            "bridge_started cluster=%s receiver=%s partitions=%d",
            key, destination.receiver, len(numbers),
        )  # fmt: skip
        self._trouble = None

    async def _bridge(self) -> None:
        try:
            async with asyncio.TaskGroup() as running:
                for each in self._partitions:
                    running.create_task(self._run_one(each))
            await self._destination.flush()
        finally:
            for each in self._partitions:
                await each.close()
        log.info("bridge_stopped posted=%d", sum(each.machine.posted for each in self._partitions))
        for each in self._partitions:
            if each.final_error is not None:
                raise each.final_error

    async def _run_one(self, partition: PartitionBridge) -> None:
        await partition.run()
        if partition.final_error is not None:
            for each in self._partitions:
                each.put(StopAsked())


class PartitionBridge:
    """One partition: its machine, its feed, its lane."""

    def __init__(
        self,
        host: Host,
        reader: waltz.AsyncLogReader,
        destination: Destination,
        lane: Lane,
        options: BridgeOptions,
        partition_id: PartitionId,
        room: asyncio.Semaphore,
        end: int | None,
    ) -> None:
        self.final_error: Exception | None = None
        self.machine = Delivery(
            lane.place.next_id,
            count_max=destination.count_max,
            retry_seconds_max=options.retry_seconds_max,
            end=end,
        )
        self._host = host
        self._reader = reader
        self._lane = lane
        self._remedy = destination.remedy
        self._partition_id = partition_id
        self._room = room
        self._end = end
        self._mailbox: Mailbox[Event] = Mailbox(host.clock, EVENTS_MAX)
        self._task: asyncio.Task[None] | None = None
        self._feed: AsyncGenerator[waltz.TransactionColumns, None] | None = None
        self._fed: waltz.TransactionColumns | None = None
        self._history: UUID | None = None
        """The history of which `_feed` and `_fed` are."""

    def put(self, event: Event) -> None:
        self._mailbox.put(event)

    async def run(self) -> None:
        """Return once the machine has ended."""
        try:
            await run(self.machine, self._mailbox, self._host, self._perform)
        finally:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            await self._drop_feed()

    async def close(self) -> None:
        """End the connection to the destination. Idempotent."""
        await self._lane.close()

    def figures(self) -> PartitionFigures:
        machine = self.machine
        return PartitionFigures(
            self._partition_id,
            machine.next_id,
            machine.last_sent,
            machine.phase.value,
            machine.posted,
            machine.posts,
            machine.refusals,
            machine.refused_in_a_row,
            machine.trouble,
        )

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Abandon):
            if self._task is not None:
                self._task.cancel()
            return
        self._task = asyncio.get_running_loop().create_task(self._carry_out(effect))

    async def _carry_out(self, effect: Post | Save) -> None:
        try:
            event = await self._outcome(effect)
        except FINAL_ERRORS as error:
            self.final_error = error
            event = Failed(str(error))
        except (DeliveryFailedError, WaltzError, OSError) as error:
            event = Refused(str(error), self._host.random.uniform(0.0, 1.0))
        except Exception as error:
            log.exception("bridge_crashed partition=%d", self._partition_id)
            self.final_error = error
            event = Failed(repr(error))
        if isinstance(event, Refused):
            # What waits for long is not to hold memory.
            await self._drop_feed()
            log.warning(
                "bridge_refused partition=%d next=%d last=%s attempt=%d error=%s",
                self._partition_id, self.machine.next_id, self.machine.last_sent,
                self.machine.refused_in_a_row + 1, event.text,
            )  # fmt: skip
        elif isinstance(event, Accepted):
            self._note_resumed(event.last)
        elif isinstance(event, Saved):
            self._note_resumed(self.machine.next_id - 1)
        self.put(event)

    def _note_resumed(self, last: int) -> None:
        if self.machine.refused_in_a_row:
            log.info(
                "bridge_resumed partition=%d next=%d last=%d",
                self._partition_id, self.machine.next_id, last,
            )  # fmt: skip

    async def _outcome(self, effect: Post | Save) -> Event:
        if isinstance(effect, Save):
            assert self._history is not None, "something was read"
            to = PartitionProgress(effect.next_id, self._history)
            await self._lane.keep(to, is_due=effect.is_due)
            return Saved()
        available = await self._available(effect.first)
        async with self._room:
            return await self._lane.deliver(
                available, effect.count_max, lambda last: self.put(Sending(last))
            )

    async def _available(self, first: int) -> Available:
        """Return transactions that have `first`, and their history. Raises HistoryChangedError:
        what was posted before `first` is not in the log any more; other errors of a reader.

        A feed's transactions are of the history that was current when the feed began, or this is
        seen: the reader learns of a new history before it gets anything of it.
        """
        has_failed = self._end is None and self.machine.refused_in_a_row > 0
        while True:
            histories = self._reader.histories
            if histories.current != self._history:
                await self._drop_feed()
                stored = self._lane.place.history
                check_history(histories, self._partition_id, stored, first - 1, self._remedy)
                self._history = histories.current
                continue
            fed = self._fed
            if fed is not None and first < fed.first_transaction_id + len(fed):
                return Available(fed, first, histories.current)
            self._fed = None
            if has_failed and self._feed is None:
                has_failed = False
                await self._look_whether_anything_waits(first)
                continue  # the histories may be others by now
            if self._feed is None:
                self._feed = self._opened_feed(first)
            self._fed = await anext(self._feed)

    async def _look_whether_anything_waits(self, first: int) -> None:
        """Tell the machine if the log has nothing to post: a feed that brings nothing does not say
        why. Raises as `AsyncLogReader.high_water_mark`."""
        if await self._reader.high_water_mark(self._partition_id) == first - 1:
            self._note_resumed(first - 1)
            self.put(CaughtUp())

    def _opened_feed(self, first: int) -> AsyncGenerator[waltz.TransactionColumns, None]:
        if self._end is None:
            return self._reader.follow(self._partition_id, first)
        return self._reader.read(self._partition_id, first, self._end, history=self._history)

    async def _drop_feed(self) -> None:
        feed, self._feed, self._fed = self._feed, None, None
        if feed is not None:
            async with aclosing(feed):
                pass
