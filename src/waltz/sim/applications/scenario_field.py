"""The surroundings of a scenario's clients.

Owns the applications and databases that clients work with, the versions that processes speak in
each of their lives, and how far the run has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from waltz.sim.applications.application import Application
from waltz.sim.applications.databases import DatabaseApplication, SimulatedDatabase
from waltz.sim.applications.postponing import PostponingApplication
from waltz.sim.applications.transfers import TransferApplication
from waltz.sim.faults.kinds import AddedPartitions
from waltz.sim.judges.history import History
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.scenario import Scenario
from waltz.sim.simulated_cluster import server_addresses
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.storage_protocol import STORAGE_CODEC


class ScenarioField:
    """Implements `RunField` for the clients of a scenario."""

    def __init__(
        self,
        scenario: Scenario,
        history: History,
        trace: RunTrace,
        now: Callable[[], float],
        partition_count: Callable[[], int],
    ) -> None:
        """`partition_count` returns the present number of the cluster's partitions."""
        self.client_count = len(scenario.clients)
        self.grows = scenario.has(AddedPartitions)
        self.server_addresses = server_addresses(scenario.shape)
        self.progress = asyncio.Event()
        self.tide = asyncio.Event()
        self.peace = asyncio.Event()
        self.applications: list[Application] = []
        """All applications so far, also those of clients' earlier lives."""
        self._databases: dict[str, SimulatedDatabase] = {}
        self._scenario = scenario
        self._history = history
        self._trace = trace
        self._now = now
        self._partition_count = partition_count
        self._versions = {name: [*versions] for name, versions in scenario.versions.items()}
        self._storage_versions = {
            name: [*versions] for name, versions in scenario.storage_versions.items()
        }
        history.on_end = self.progress.set

    @property
    def partition_count(self) -> int:
        return self._partition_count()

    def application(self, name: str, kind: str = "plain") -> Application:
        known = name, self._history, self._trace, self._now
        application: Application
        match kind:
            case "plain":
                application = Application(*known)
            case "postponing":
                application = PostponingApplication(*known, self._random_of(name))
            case "transfers":
                application = TransferApplication(*known)
            case _:
                if kind not in self._databases:
                    self._databases[kind] = SimulatedDatabase()
                application = DatabaseApplication(
                    *known, self._random_of(name), self._databases[kind]
                )
        self.applications.append(application)
        return application

    def _random_of(self, name: str) -> Random:
        return Random(f"{self._scenario.source}/{name}/application {len(self.applications)}")

    def close(self) -> None:
        """Close the databases."""
        for database in self._databases.values():
            database.close()

    def next_version(self, name: str) -> int:
        """An upgrade is a restart with another version; the last one stays."""
        return _next(self._versions.get(name, [CLIENT_CODEC.versions[-1]]))

    def next_storage_version(self, name: str) -> int:
        """Return like `next_version`, for the storage protocol."""
        return _next(self._storage_versions.get(name, [STORAGE_CODEC.versions[-1]]))

    async def reached(self, progress: float) -> None:
        ended_count = int(progress * self._scenario.transactions)
        while self._history.ended_count < ended_count:
            self.progress.clear()
            await self.progress.wait()

    def raise_tide(self) -> None:
        """Wake those that wait for the tide; the next tide is another event."""
        self.tide.set()
        self.tide = asyncio.Event()


def _next(versions: list[int]) -> int:
    return versions.pop(0) if len(versions) > 1 else versions[0]
