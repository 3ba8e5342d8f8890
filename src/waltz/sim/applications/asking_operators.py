"""Operators of a run who ask: about named consumers, and about transactions.

Owns when they ask, and about which transactions. The judges `ConsumerWatch` and `ExplanationWatch`
compare the answers with what the run knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from random import Random
from typing import Final

from waltz.cluster.paths import DEFAULT_ROOT
from waltz.errors import WaltzError
from waltz.host import Host
from waltz.operators.explanation_shell import explain_transaction
from waltz.operators.named_consumers_shell import read_named_consumers
from waltz.reader.reader_shell import AsyncLogReader
from waltz.sim.judges.checkers import Log
from waltz.sim.judges.consumer_watch import ConsumerWatch
from waltz.sim.judges.durable_times import DurableTimes
from waltz.sim.judges.explanation_watch import ExplanationWatch, Held
from waltz.sim.judges.history import History
from waltz.sim.scenario import Scenario
from waltz.sim.simulated_cluster import SimulatedCluster, replica_id_of
from waltz.types import PartitionId, TransactionId

ASK_PAUSE_SECONDS: Final = 0.3
"""Seconds between two questions of an operator, while clients are at work."""

ASK_SECONDS_MAX: Final = 2.0
"""An operator waits at most this long for a server."""

IDLE_SECONDS: Final = 60.0
"""Seconds in which nothing is appended before the last question about consumers."""

EXPLAIN_SECONDS_MAX: Final = 20.0
"""An operator waits at most this long for an explanation, while faults strike."""

EXPLAINED_BEYOND: Final = 2
"""Transactions after the last committed one that are asked about, too."""

EXPLAINED: Final = 12
"""Transactions per partition that are explained in the end."""


class ConsumerOperator:
    """An operator who asks how far named consumers are."""

    def __init__(self, watch: ConsumerWatch, now: Callable[[], float]) -> None:
        self.watch = watch
        self._now = now

    async def run(self, is_over: Callable[[], bool], host: Host) -> None:
        """Ask as long as clients are at work."""
        while not is_over():
            with suppress(WaltzError):  # the coordinator is away
                await self._ask(host)
            await asyncio.sleep(ASK_PAUSE_SECONDS)

    async def ask_of_idle(self, host: Host) -> None:
        """Ask once nobody has appended anything for a while, and all consumers are gone."""
        await asyncio.sleep(IDLE_SECONDS)
        await self._ask(host)
        await host.coordinator.close()

    async def _ask(self, host: Host) -> None:
        asked_at = self._now()
        view = await read_named_consumers(host, DEFAULT_ROOT, seconds=ASK_SECONDS_MAX)
        self.watch.see_view(view, asked_at, self._now())


class ExplanationOperator:
    """An operator who has transactions explained."""

    def __init__(
        self,
        scenario: Scenario,
        cluster: SimulatedCluster,
        history: History,
        times: DurableTimes,
        committed: Callable[[PartitionId], TransactionId],
        harmed: Callable[[], Collection[str]],
    ) -> None:
        """`committed` returns the last transaction that any server has known to be committed,
        `harmed` the machines on whose disks something durable is gone or changed now."""
        self.watch = ExplanationWatch(
            history, times, self._held, committed, has_old=bool(scenario.versions)
        )
        self._source = scenario.source
        self._cluster = cluster
        self._times = times
        self._committed = committed
        self._harmed = harmed

    async def run(self, is_over: Callable[[], bool], host: Host) -> None:
        """Have transactions explained as long as clients are at work."""
        random = Random(f"{self._source}/explained")
        while not is_over():
            await asyncio.sleep(random.uniform(0.0, ASK_PAUSE_SECONDS))
            partition_id = random.choice(self._cluster.partition_ids)
            last = self._committed(partition_id) + EXPLAINED_BEYOND
            number = TransactionId(random.randint(max(0, last - 20), last))
            with suppress(WaltzError, TimeoutError):  # nobody answers
                async with asyncio.timeout(EXPLAIN_SECONDS_MAX):
                    await self._explain(host, partition_id, number)

    async def explain_in_the_end(self, log: Log, host: Host) -> None:
        """Have some transactions explained once nothing happens any more."""
        random = Random(f"{self._source}/explained in the end")
        for partition_id in self._cluster.partition_ids:
            count = len(log.get(partition_id, ()))
            for number in [*random.sample(range(count), min(count, EXPLAINED)), count]:
                await self._explain(host, partition_id, TransactionId(number))
        await host.coordinator.close()

    async def _explain(
        self, host: Host, partition_id: PartitionId, transaction_id: TransactionId
    ) -> None:
        storages = self._cluster.storages
        with self._times.looking() as synced:
            question = self.watch.asked(partition_id, transaction_id, storages, synced)
            async with AsyncLogReader(host, timeout_seconds=ASK_SECONDS_MAX) as reader:
                told = await explain_transaction(
                    host, DEFAULT_ROOT, reader, partition_id, transaction_id
                )
            self.watch.answered(question, told, {replica_id_of(n): n for n in storages})

    def _held(self, partition_id: PartitionId, transaction_id: TransactionId) -> Held:
        """Return the durable copies of a transaction, on disks that no fault has harmed."""
        harmed = self._harmed()
        found = {}
        for name, replica in self._cluster.replicas(durable=True).items():
            records = replica.records[partition_id]
            if name not in harmed:
                is_there = transaction_id < len(records)
                found[name] = records[transaction_id] if is_there else None
        return found
