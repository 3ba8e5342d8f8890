"""A whole cluster in the memory of one process, for the tests of applications.

Owns the thread in which it runs and the clients opened on it. An ordinary server and storage node
run on simulated machines, at the pace of the real clock; no port, no file and no other process is
used (PM-60).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final
from uuid import uuid4

from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.blocking_client import WaltzClient
from waltz.client.client_options import options_from
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.notes_shell import ClusterNotes
from waltz.connections.loop_thread import Closable
from waltz.errors import ClientClosedError, ConfigurationError
from waltz.host import Host
from waltz.limits import READER_SECONDS_MAX
from waltz.operators.cluster_growth_shell import add_partitions, plan_growth, wait_until_served
from waltz.reader.blocking_reader import LogReader
from waltz.reader.reader_shell import AsyncLogReader
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import Process, SimulatedClock
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import SimulatedCluster
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.simulated_network import NetworkWeather
from waltz.sim.sites import Sites
from waltz.system.random import RealRandom
from waltz.system.workers import RealWorkers
from waltz.testing.async_clients import AsyncTestClient, AsyncTestReader
from waltz.testing.cluster_faults import Faults, FaultyEngine
from waltz.testing.paced_loop import PacedLoop, SharedThread

CALM: Final = NetworkWeather(
    delay_seconds_min=0.0,
    delay_seconds_max=0.0,
    split_probability=0.0,
    slow_probability=0.0,
    slow_seconds_max=0.0,
)
PARTITIONS_MAX: Final = 1_000


class _NoTrace(RunTrace):
    """Records nothing: a cluster may live for long, and is not replayed."""

    def note(self, when: float, what: str, *facts: object) -> None: ...


class InMemoryCluster(Closable):
    """A cluster and its clients; a context manager, of either kind. Its data ends with it.

    Opening it takes tens of milliseconds, also on an event loop.
    """

    def __init__(
        self,
        *,
        partitions: int = 1,
        name: str = "mock",
        for_tests: bool = False,
        faults: Faults | None = None,
    ) -> None:
        """Start the cluster and return once every partition takes appends.

        `for_tests` must be True: no data outlives the process (PM-64). `faults` are those of the
        clients that get none of their own. Raises ConfigurationError.
        """
        if not for_tests:
            raise ConfigurationError(
                "a cluster in memory loses everything with its process: use it in tests only, and"
                " say so with InMemoryCluster(for_tests=True)"
            )
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise ConfigurationError(f"{partitions} partitions; expected 1 to {PARTITIONS_MAX}")
        self.name = name
        self.partition_count = partitions
        self.faults = faults or Faults()
        self._clients: list[WaltzClient | LogReader] = []
        self._async_clients: list[AsyncTestClient | AsyncTestReader] = []
        self._guests_count = 0
        loop = PacedLoop("testing")
        self._sites = Sites(loop, "testing", _NoTrace())
        self._sites.network.weather = CALM
        self._loop = loop
        self._thread = SharedThread("waltz-testing", loop)
        try:
            self._thread.call(self._start())
        except BaseException:
            self._thread.end()
            raise

    async def _start(self) -> None:
        shape = ClusterShape(
            partition_count=self.partition_count,
            storage_count=1,
            server_count=1,
            segment_bytes_threshold=1_000_000_000,
        )
        self._cluster = SimulatedCluster(self._sites, shape, uuid4(), name=self.name)
        await self._cluster.start()
        host, release = self._new_host()
        try:
            async with AsyncLogReader(host) as reader:
                for partition_id in shape.partition_ids:
                    await reader.high_water_mark(partition_id)
        finally:
            await host.coordinator.close()
            release()
        self._loop.pace()

    def open_client(
        self, callbacks: WaltzClientCallbacks, *, faults: Faults | None = None, **options: Any
    ) -> WaltzClient:
        """Return a client as `waltz.open_client` does; `options` are the same (PM-61).

        The cluster closes it at the latest. Raises ConfigurationError.
        """
        client = WaltzClient(
            self._new_host,
            callbacks,
            options_from(options),
            thread=self._thread,
            new_engine=partial(FaultyEngine, faults=faults or self.faults),
        )
        self._clients.append(client)
        return client

    def open_async_client(
        self, callbacks: WaltzClientCallbacks, *, faults: Faults | None = None, **options: Any
    ) -> AsyncWaltzClient:
        """Return a client as `waltz.open_async_client` does, for whichever loop enters it.

        The cluster closes it at the latest. Raises ConfigurationError.
        """
        settings = options_from(options)
        new_engine = partial(FaultyEngine, faults=faults or self.faults)

        def new_client() -> AsyncWaltzClient:
            host, release_host = self._new_host()
            return AsyncWaltzClient(
                host, callbacks, settings, release_host=release_host, new_engine=new_engine
            )

        client = AsyncTestClient(self._thread, settings, new_client)
        self._async_clients.append(client)
        return client

    def open_async_reader(self, *, timeout_seconds: float = READER_SECONDS_MAX) -> AsyncLogReader:
        """Return a reader as `waltz.open_async_reader` does, for whichever loop enters it."""

        def new_reader() -> AsyncLogReader:
            host, release_host = self._new_host()
            return AsyncLogReader(host, timeout_seconds=timeout_seconds, release_host=release_host)

        reader = AsyncTestReader(self._thread, new_reader)
        self._async_clients.append(reader)
        return reader

    def open_reader(self, *, timeout_seconds: float = READER_SECONDS_MAX) -> LogReader:
        """Return a reader as `waltz.open_reader` does."""
        reader = LogReader(self._new_host, timeout_seconds=timeout_seconds, thread=self._thread)
        self._clients.append(reader)
        return reader

    def open_notes(self) -> ClusterNotes:
        """Return notes as `waltz.open_notes` does."""
        return ClusterNotes(self._new_host, thread=self._thread)

    def add_partitions(self, to: int) -> None:
        """Raise the cluster's number of partitions to `to` while clients run, as `waltz cluster
        add-partitions` does.

        Each client learns of it soon. Raises ConfigurationError: fewer than there are.
        """
        if not 1 <= to <= PARTITIONS_MAX:
            raise ConfigurationError(f"{to} partitions; expected 1 to {PARTITIONS_MAX}")
        self._thread.call(self._grow(to))
        self.partition_count = to

    async def _grow(self, to: int) -> None:
        host, release = self._new_host()
        try:
            plan = await plan_growth(host, to, despite_earlier_clients=True)
            await add_partitions(host, plan)
            await wait_until_served(host, plan.new, READER_SECONDS_MAX)
        finally:
            await host.coordinator.close()
            release()

    def close(self) -> None:
        """Close the clients and forget everything. Idempotent.

        Transactions that a suspended feed holds back are neither committed nor applied any more.
        """
        for client in self._clients:
            client.close()
        with contextlib.suppress(ClientClosedError):
            for each in self._async_clients:
                self._thread.call(each.close_there())
        self._thread.end()

    async def __aenter__(self) -> InMemoryCluster:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    def _new_host(self) -> tuple[Host, Callable[[], None]]:
        """Return the doors of one more process. To be called on the loop."""
        self._guests_count += 1
        process = Process(f"client-{self._guests_count}")
        workers = RealWorkers(daemon=True)
        host = Host(
            clock=SimulatedClock(self._loop, self._sites.random, process),
            network=self._sites.network.door(process),
            disk=SimulatedDisk(),
            random=RealRandom(),
            workers=workers,
            coordinator=self._sites.coordinator.door(process),
        )
        return host, workers.close
