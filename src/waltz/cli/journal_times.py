"""The times of printed transactions, from the journals of all storage nodes.

Owns how long a node that does not answer is left alone. The meaning of the times is that of
`operators/journals_shell.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from waltz.cli.tail import TimeBounds
from waltz.host import Host
from waltz.majority import majority
from waltz.operators.journals_shell import ClusterJournals, JournalAnswer, cluster_journals
from waltz.operators.replicas_shell import Replica
from waltz.types import PartitionId, TransactionId
from waltz.wire.journal_facts import majority_interval

ACCESS_SECONDS_MAX: Final = 30.0
"""Age of the connections to storage nodes at which they are opened anew: nodes that did not answer
are asked again, and changes of replicas are seen."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The answers of all nodes about a run of transactions."""

    answers: tuple[tuple[JournalAnswer, ...], ...]
    """Per replica, one part after the other."""

    def bounds(self, transaction_id: int) -> TimeBounds:
        intervals = [
            next((each for part in parts if (each := part.interval(transaction_id))), None)
            for parts in self.answers
        ]
        if not intervals:
            return TimeBounds(None, None)
        return TimeBounds(*majority_interval(intervals, majority(len(intervals))))


class JournalTimes:
    """Asks storage nodes for the times of runs of transactions."""

    def __init__(self, host: Host, root: str) -> None:
        self._host = host
        self._root = root
        self._stack = AsyncExitStack()
        self._journals: ClusterJournals | None = None
        self._opened_at = 0.0
        self._turn = asyncio.Lock()
        """Held while nodes are asked: each is asked one question at a time."""

    async def of_run(self, partition_id: int, first: int, end: int) -> RunTimes:
        """Return the times of the transactions from `first` to `end` - 1. Raises
        CoordinatorLostError."""
        async with self._turn:
            journals = await self._open()
            replicas = await journals.replicas(PartitionId(partition_id))
            return RunTimes(
                tuple([await _parts(journals, replica, first, end) for replica in replicas])
            )

    async def close(self) -> None:
        await self._stack.aclose()

    async def _open(self) -> ClusterJournals:
        now = self._host.clock.now()
        if self._journals is None or now - self._opened_at > ACCESS_SECONDS_MAX:
            await self._stack.aclose()
            opened = cluster_journals(self._host, self._root)
            self._journals = await self._stack.enter_async_context(opened)
            self._opened_at = now
        return self._journals


async def _parts(
    journals: ClusterJournals, replica: Replica, first: int, end: int
) -> tuple[JournalAnswer, ...]:
    """Return what a node tells of the transactions, part after part."""
    parts: list[JournalAnswer] = []
    position = first
    while position < end:
        part = await journals.ask(replica, TransactionId(position), TransactionId(end - 1))
        if part.end <= position:
            break
        parts.append(part)
        position = part.end
    return tuple(parts)
