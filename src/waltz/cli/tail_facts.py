"""The times and authors of printed transactions, asked for run by run.

Owns how long the answers of servers about their clients are believed. The rules are those of
`operators`: `journals_shell.py` for times, `authors.py` for names.
"""

from __future__ import annotations

import asyncio
from typing import Final

import waltz
from waltz.cli.tail import RowFacts, TimeBounds, request_ids_of
from waltz.host import Host
from waltz.operators.authors import Author
from waltz.operators.authors_shell import MountedClients, ask_mounted_clients
from waltz.operators.journals_shell import RunTimes
from waltz.operators.log_times_shell import AsyncLogTimes
from waltz.types import PartitionId

MOUNTED_SECONDS_MAX: Final = 10.0
"""Age of the servers' answers about their clients at which they are asked again."""


class TailFacts:
    """Asks storage nodes for the times of a run of transactions, and servers for their clients: a
    question per run, never one per transaction."""

    def __init__(
        self, host: Host, root: str, times: AsyncLogTimes, shows_time: bool, shows_author: bool
    ) -> None:
        self._host = host
        self._root = root
        self._times = times
        self._shows_time = shows_time
        self._shows_author = shows_author
        self._mounted: MountedClients | None = None
        self._asked_at = 0.0
        self._asking = asyncio.Lock()

    async def of_run(self, partition_id: int, run: waltz.TransactionColumns) -> RowFacts:
        """Return what is shown of each transaction. Raises CoordinatorLostError."""
        first = int(run.first_transaction_id)
        told = await self._times.run_times(partition_id, first, first + len(run.data))
        bounds = None
        if self._shows_time:
            lows, highs = told.committed()
            columns = zip(lows.tolist(), highs.tolist(), strict=True)
            bounds = [TimeBounds(low, high) for low, high in columns]
        authors = None
        if self._shows_author:
            authors = authors_of(run, told, await self._clients(), PartitionId(partition_id))
        return RowFacts(bounds, authors)

    async def _clients(self) -> MountedClients:
        async with self._asking:
            now = self._host.clock.now()
            if self._mounted is None or now - self._asked_at > MOUNTED_SECONDS_MAX:
                self._mounted = await ask_mounted_clients(self._host, self._root)
                self._asked_at = self._host.clock.now()
            return self._mounted


def authors_of(
    run: waltz.TransactionColumns,
    told: RunTimes,
    mounted: MountedClients,
    partition_id: PartitionId,
) -> list[Author | None]:
    """Return the client of each transaction of `run`; None where it is unknown."""
    first = int(run.first_transaction_id)
    return [
        mounted.author(
            request_id.client_id, partition_id, told.notes_of(request_id.client_id, first + row)
        )[0]
        for row, request_id in enumerate(request_ids_of(run))
    ]
