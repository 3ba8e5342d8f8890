"""The last client of a run: it shows that the cluster takes appends again, and reads the whole log.

Owns when there is peace: every partition has taken an append, and every client was fed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from waltz.client.client_shell import AsyncWaltzClient
from waltz.host import Host
from waltz.sim.applications.application import Application, Draft, Intent, submit
from waltz.sim.applications.clients import SimulatedClient
from waltz.sim.applications.scenario_field import ScenarioField
from waltz.sim.judges.history import ContextVerdict
from waltz.sim.judges.payload import EntryKind
from waltz.sim.simulated_cluster import SimulatedCluster
from waltz.types import PartitionId

JUDGE: Final = "judge"


class JudgeClient:
    """The client that is fed the log by which all others are judged."""

    def __init__(
        self,
        field: ScenarioField,
        cluster: SimulatedCluster,
        clients: Sequence[SimulatedClient],
    ) -> None:
        self.writable_seconds = 0.0
        """Seconds from its start until every partition had taken an append."""
        self._application = field.application(JUDGE)
        self._field = field
        self._cluster = cluster
        self._clients = clients

    async def run(self, host: Host) -> None:
        """Append to every partition, and read the whole log up to these appends, and then what
        clients that are gone had still under way."""
        now = self._cluster.sites.loop.time
        began = now()
        async with AsyncWaltzClient(host, self._application) as client:
            async with asyncio.TaskGroup() as group:
                appending = [
                    group.create_task(self._append_mark(client, partition_id))
                    for partition_id in self._cluster.partition_ids
                ]
            self.writable_seconds = now() - began
            last = {task.result() for task in appending}
            while not all(last <= user.contexts_seen for user in self._users()):
                await asyncio.sleep(0.1)
            self._field.peace.set()
            while not self._has_read_all():
                await asyncio.sleep(0.1)

    def _users(self) -> Collection[Application]:
        return [self._application, *(client.application for client in self._clients)]

    def _has_read_all(self) -> bool:
        """Return whether the other clients are gone, and none was fed anything that this one was
        not."""
        sites, marks = self._cluster.sites, self._application.marks
        return all(sites.site(client.name).process.dead for client in self._clients) and all(
            mark <= marks.get(partition_id, mark - 1)
            for user in self._field.applications
            for partition_id, mark in user.marks.items()
        )

    async def _append_mark(self, client: AsyncWaltzClient, partition_id: PartitionId) -> int:
        """Append a last transaction, however often it takes, and return its context."""
        while True:
            mark = Intent(
                self._application,
                partition_id,
                lambda application, partition_id: Draft(EntryKind.NOTE),
                header=0,
                padding=b"the end",
            )
            await submit(client, mark)
            if mark.submission.has_ended(ContextVerdict.COMMITTED):
                return mark.number
            await asyncio.sleep(0.1)  # a client that has failed returns at once, for ever
