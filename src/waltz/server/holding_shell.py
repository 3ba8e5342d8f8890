"""A server's answers to tools that take cuts: it has all its partitions begin and end holds.

Decides nothing about a hold: the partitions do. Owns the numbers of holds, which are never used
twice while the server runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final, Protocol

from waltz.limits import HOLD_SECONDS_MAX
from waltz.server.hold import NO_SUCH_HOLD
from waltz.server.server_partition import ServerPartition
from waltz.server.server_partition_events import HoldBegun, HoldEnded, HoldReleased, HoldRequested
from waltz.types import Generation, PartitionId
from waltz.wire.cut_protocol import (
    PARTITIONS_HELD_MAX,
    HeldPartition,
    HoldAnswer,
    HoldName,
    HoldReleaseAnswer,
    HoldReleaseRequest,
    HoldRequest,
    HoldTrouble,
)

logger = logging.getLogger(__name__)

HOLD_MILLISECONDS_MAX: Final = round(HOLD_SECONDS_MAX * 1000)


class HoldingPartition(Protocol):
    """The part of a running partition that holds."""

    @property
    def machine(self) -> ServerPartition: ...

    def hold(self, asked: HoldRequested) -> asyncio.Future[HoldBegun]:
        """Begin a hold ahead of all that waits."""
        ...

    def release(self, asked: HoldReleased) -> asyncio.Future[HoldEnded]:
        """End a hold after all that waits."""
        ...


class Holding:
    """The holds of one server."""

    def __init__(
        self,
        running: Mapping[PartitionId, HoldingPartition],
        assigned: Callable[[], Mapping[PartitionId, Generation]],
    ) -> None:
        """`running` and `assigned`: the partitions that are open, and those that should be."""
        self._running = running
        self._assigned = assigned
        self._hold_ids = count(1)

    async def hold(self, connection_id: int, request: HoldRequest) -> HoldAnswer:
        """Begin a hold of each partition at once; return what is held."""
        number = request.request_number
        if not 0 < request.milliseconds <= HOLD_MILLISECONDS_MAX:
            text = f"a hold of {request.milliseconds} ms; expected 1 to {HOLD_MILLISECONDS_MAX}"
            return HoldAnswer(number, text, (), ())
        wanted = sorted({*self._running, *self._assigned()})
        if len(wanted) > PARTITIONS_HELD_MAX:
            text = (
                f"the server has {len(wanted)} partitions; it holds {PARTITIONS_HELD_MAX} at most"
            )
            return HoldAnswer(number, text, (), ())
        seconds = request.milliseconds / 1000
        answers: dict[PartitionId, tuple[Generation, asyncio.Future[HoldBegun]]] = {}
        troubles: dict[PartitionId, str] = {}
        for partition_id in wanted:
            partition = self._running.get(partition_id)
            if partition is None:
                troubles[partition_id] = "its server has not opened it"
                continue
            asked = HoldRequested(next(self._hold_ids), connection_id, seconds)
            answers[partition_id] = partition.machine.generation, partition.hold(asked)
        held = []
        for partition_id, (generation, answer) in answers.items():
            begun = await answer
            if begun.refusal is not None:
                troubles[partition_id] = begun.refusal
                continue
            mark, session_id = begun.high_water_mark, begun.session_id
            held.append(HeldPartition(partition_id, generation, session_id, mark, begun.hold_id))
        logger.info("announcements_held partitions=%d refused=%d", len(held), len(troubles))
        return HoldAnswer(number, None, tuple(held), _told(troubles))

    async def release(self, connection_id: int, request: HoldReleaseRequest) -> HoldReleaseAnswer:
        """End holds of this connection; return those that were in force all the time."""
        answers: dict[HoldName, asyncio.Future[HoldEnded]] = {}
        troubles: dict[PartitionId, str] = {}
        for name in dict.fromkeys(request.holds):
            partition = self._running.get(name.partition_id)
            if partition is None:
                troubles[name.partition_id] = NO_SUCH_HOLD
            else:
                answers[name] = partition.release(HoldReleased(name.hold_id, connection_id))
        unbroken = []
        for name, answer in answers.items():
            ended = await answer
            if ended.broken_by is None:
                unbroken.append(name)
            else:
                troubles[name.partition_id] = ended.broken_by
        return HoldReleaseAnswer(request.request_number, tuple(unbroken), _told(troubles))


def _told(troubles: Mapping[PartitionId, str]) -> tuple[HoldTrouble, ...]:
    return tuple(HoldTrouble(*each) for each in sorted(troubles.items()))
