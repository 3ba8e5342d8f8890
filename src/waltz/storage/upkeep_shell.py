"""The storage node's own work: watch the disk's free space, reopen writers, scrub.

Owns the two loops and what they log. Decides neither when appends are refused (`space.py`) nor what
is read when (`scrubber.py`); all work in a partition runs in its queue, in its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

from waltz.errors import NotFoundError, UnavailableError
from waltz.host import Host
from waltz.storage.directory.reserve import Reserve
from waltz.storage.directory.space import FreeMinimum, SpaceGuard, SpaceState, size_text
from waltz.storage.drain import REFUSALS
from waltz.storage.log.damage import DamagedRange, damage_text
from waltz.storage.log.segment_recovery import TornTail
from waltz.storage.partition_queue_shell import PartitionQueue
from waltz.storage.partition_replica import StoragePartition
from waltz.storage.scrubber import Scrubber, ScrubResult, ScrubTurn
from waltz.types import PartitionId

SPACE_READING_SECONDS: Final = 1.0
"""Between two readings of the free space; appends admitted in between are counted."""

SPACE_REOPEN_BYTES: Final = 1024**2
"""Free bytes needed to reopen a writer that found no space: for its index."""


log = logging.getLogger(__name__)


class Upkeep:
    """The two loops. Make it in a worker, for that reads the disk's free space; then `run` it."""

    def __init__(
        self,
        host: Host,
        directory: str,
        queues: Mapping[PartitionId, PartitionQueue],
        *,
        free_minimum: FreeMinimum,
        scrub_bytes_per_second: int,
        scrub_interval_seconds: float,
        scrub_start_seconds: float,
    ) -> None:
        """`queues` is the node's own mapping, which changes. Raises OSError."""
        self.space = SpaceGuard(directory, free_minimum, host.disk.space(directory))
        self.scrubber: Scrubber | None = None
        """None: switched off."""
        if scrub_bytes_per_second:
            self.scrubber = Scrubber(
                bytes_per_second=scrub_bytes_per_second,
                interval_seconds=scrub_interval_seconds,
                start_seconds=scrub_start_seconds,
                now=host.clock.now(),
            )
        self._host = host
        self._directory = directory
        self._queues = queues
        self._reserve = Reserve(host.disk, directory)
        self._stopped = asyncio.Event()
        self._is_needed = asyncio.Event()
        self._look_began: float | None = None
        """The time at which the reading of the free space that is under way began."""
        self._shown: SpaceState | None = None
        """The state that was logged last."""
        self._shown_damage: dict[PartitionId, frozenset[DamagedRange]] = {}
        self._not_reopened: set[PartitionId] = set()
        """Partitions that could not be reopened, which was logged once."""
        try:
            # The reserve of an earlier process is kept, however little else is free.
            self._reserve.take()
        except OSError as error:
            log.warning("reserve_not_taken directory=%s error=%s", directory, error)
        self._look()

    async def run(self) -> None:
        """Run both loops until stopped."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_space())
            if self.scrubber is not None:
                group.create_task(self._scrub(self.scrubber))

    def stop(self) -> None:
        self._stopped.set()
        self._is_needed.set()

    @property
    def look_seconds(self) -> float:
        """The age of the reading of the free space that is under way; 0 if none is."""
        began = self._look_began
        return 0.0 if began is None else self._host.clock.now() - began

    def look_soon(self) -> None:
        """Read the free space at once: a writer has closed."""
        self._is_needed.set()

    # Space

    async def _keep_space(self) -> None:
        while not self._stopped.is_set():
            await _wait(self._is_needed, SPACE_READING_SECONDS)
            self._is_needed.clear()
            if self._stopped.is_set():
                return
            lacking = [
                queue for queue in self._queues.values() if queue.partition.is_closed_for_space
            ]
            if lacking:
                self.space.meet_full(self._host.clock.now())
            self._look_began = self._host.clock.now()
            try:
                await self._host.workers.run_blocking(self._look)
                self.space.trouble = None
            except OSError as error:
                if self.space.trouble is None:
                    log.error("space_unknown directory=%s error=%s", self._directory, error)
                self.space.trouble = str(error)
            self._look_began = None
            for queue in lacking:
                await self._reopen(queue)

    def _look(self) -> None:
        """Read the free space, and take or release the reserve accordingly. Raises OSError."""
        self._read_space()
        wanted = self.space.reserve_wanted(held=self._reserve.is_held)
        trouble = None
        if wanted != self._reserve.is_held:
            try:
                if wanted:
                    self._reserve.take()
                else:
                    self._reserve.give_back()
            except OSError as error:
                trouble = str(error)
                if trouble != self.space.reserve_trouble:
                    log.warning("reserve_failed directory=%s error=%s", self._directory, error)
            self._read_space()
        self.space.reserve_trouble = trouble
        self._show_state()

    def _read_space(self) -> None:
        settled = self.space.settled_bytes()
        self.space.observe(
            self._host.disk.space(self._directory),
            self._host.clock.now(),
            settled_bytes=settled,
            has_reserve=self._reserve.is_held,
        )

    def _show_state(self) -> None:
        state = self.space.state
        if state is self._shown or (self._shown is None and state is SpaceState.OK):
            return
        self._shown = state
        facts = (
            self._directory,
            size_text(self.space.free_bytes),
            size_text(self.space.minimum_bytes),
        )
        match state:
            case SpaceState.OK:
                log.info("space_ok directory=%s free=%s minimum=%s", *facts)
            case SpaceState.LOW:
                log.warning("space_low directory=%s free=%s minimum=%s", *facts)
            case SpaceState.SHORT:
                refusal = self.space.refusal()
                log.error("space_short directory=%s free=%s minimum=%s error=%s", *facts, refusal)

    async def _reopen(self, queue: PartitionQueue) -> None:
        """Reopen the writer as soon as that is likely to succeed: other requests that need a writer
        then succeed while appends are still refused."""
        if self.space.free_bytes < SPACE_REOPEN_BYTES:
            return
        number = queue.partition.partition_id
        try:
            torn = await queue.command(queue.partition.reopen)
        except REFUSALS as error:
            if number not in self._not_reopened and not self._stopped.is_set():
                self._not_reopened.add(number)
                log.error("writer_not_reopened partition=%d error=%s", number, error)
            return
        self._not_reopened.discard(number)
        log_opened(queue.partition, torn)

    # Scrubbing

    async def _scrub(self, scrubber: Scrubber) -> None:
        clock = self._host.clock
        while not self._stopped.is_set():
            turn = scrubber.next_turn(clock.now(), self._queues)
            if turn is None:
                await _wait(self._stopped, scrubber.deadline - clock.now())
            else:
                await self._take_turn(scrubber, turn)

    async def _take_turn(self, scrubber: Scrubber, turn: ScrubTurn) -> None:
        queue = self._queues[turn.partition_id]
        try:
            result = await queue.command(partial(self._read_again, queue, turn))
        except NotFoundError:
            scrubber.give_up(turn, self._host.clock.now(), is_assigned=False)
        except UnavailableError:
            scrubber.give_up(turn, self._host.clock.now())
        except REFUSALS as error:
            log.warning("scrub_failed partition=%d error=%s", turn.partition_id, error)
            scrubber.give_up(turn, self._host.clock.now())
        else:
            scrubber.finish(turn, result, queue, self._host.clock.now())
            self._show_damage(scrubber, queue.partition)

    def _read_again(self, queue: PartitionQueue, turn: ScrubTurn) -> ScrubResult:
        """Read slice after slice, in the partition's thread, until a request waits for it."""
        clock, partition = self._host.clock, queue.partition
        result = ScrubResult(turn.first)
        while True:
            began = clock.now()
            first = result.next_transaction_id
            step = partition.scrub(first, turn.slice_bytes)
            result.add(step, clock.now() - began)
            if (
                queue.is_waited_for
                or step.next_transaction_id <= first
                or result.bytes_read >= turn.bytes_max
                or step.next_transaction_id >= partition.log.next_transaction_id
            ):
                return result

    def _show_damage(self, scrubber: Scrubber, partition: StoragePartition) -> None:
        """Log each damaged range once, until it is repaired."""
        number = partition.partition_id
        ranges = frozenset(partition.log.damage)
        fresh = ranges - self._shown_damage.get(number, frozenset())
        scrubber.counters.ranges_damaged += len(fresh)
        for found in sorted(fresh):
            log.error(
                "records_damaged partition=%d first=%d last=%d: this replica does not vote until"
                " they are repaired from another one",
                number, found.first, found.next_transaction_id - 1,
            )  # fmt: skip
        self._shown_damage[number] = ranges


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Return once `event` is set, or after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def log_opened(partition: StoragePartition, torn: TornTail | None) -> None:
    """Log what opening a partition has found."""
    number = partition.partition_id
    if torn is not None:
        log.warning(
            "torn_tail_cut partition=%d path=%s next_transaction_id=%d offset=%d cut_bytes=%d",
            number, torn.path, torn.next_transaction_id, torn.offset, torn.cut_bytes,
        )  # fmt: skip
    if partition.loss is not None:
        log.error(
            "records_lost partition=%d error=%s; the replica does not vote until a session has"
            " filled it up",
            number, partition.loss,
        )  # fmt: skip
    if partition.damage is not None:
        log.error("partition_damaged partition=%d error=%s", number, partition.damage)
    elif partition.log.damage:
        log.error(
            "partition_open_damaged partition=%d next=%d damaged=%s",
            number, partition.log.next_transaction_id, damage_text(partition.log.damage),
        )  # fmt: skip
    else:
        log.info("partition_open partition=%d next=%d", number, partition.log.next_transaction_id)
