"""Asks storage nodes, once nothing happens any more, when their copies became durable."""

from __future__ import annotations

from random import Random
from typing import Final

from waltz.host import Host
from waltz.operators.journals_shell import cluster_journals
from waltz.sim.judges.archives import Log
from waltz.sim.judges.durable_times import DurableTimes
from waltz.sim.simulated_cluster import machine_of
from waltz.types import TransactionId

JOURNAL_QUESTIONS: Final = 10
"""Transactions per partition that storage nodes are asked about in the end."""


async def ask_journals_of(source: str, log: Log, times: DurableTimes, host: Host) -> list[str]:
    """Ask every storage node about some transactions of `log`; return what is not so."""
    random = Random(f"{source}/journals")
    wrong = []
    async with cluster_journals(host) as journals:
        for partition_id, records in sorted(log.items()):
            count = len(records)
            for number in random.sample(range(count), min(count, JOURNAL_QUESTIONS)):
                found = await journals.time_of(partition_id, TransactionId(number))
                for each in found.replicas:
                    told = each.interval and each.interval[:2]
                    name = machine_of(each.replica.replica_id)
                    if why := times.judge(name, partition_id, found.transaction_id, told):
                        wrong.append(why)
    await host.coordinator.close()
    return wrong
