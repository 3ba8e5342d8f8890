"""The end of a run: everything stops, what lies on disks is read, everything starts again, and what
clients did and saw, what servers said, and what replicas hold is compared with the log."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from tests import clusters
from tests.live.judge import Judgement, judge, judge_servers, read_log, read_replica
from tests.live.launch import Cluster
from tests.live.writers import LOOK_SECONDS, Writers

READ_SECONDS_MAX: Final = 120.0
"""Without progress of a reader; the machine may have much else to do."""

CURRENT_SECONDS_MAX: Final = 180.0
"""From the end of the load until all replicas take part in their sessions again."""


async def end_and_judge(
    cluster: Cluster,
    writers: Writers,
    violations: list[str],
    say: Callable[[str], None],
) -> Judgement:
    """Judge a run whose contexts have all ended; `violations` were found before."""
    checksums = await writers.finish(violations)
    say("waiting until all replicas take part again")
    violations += await missing_replicas(cluster)
    say("stopping everything in order, reading the replicas' files, starting everything again")
    violations += await cluster.end_nodes()
    for name in cluster.storages:
        try:
            await asyncio.to_thread(read_replica, cluster.directory / name, writers.journals)
        except (AssertionError, struct.error) as error:
            violations.append(f"replica: the files of {name} are not as they should be: {error!r}")
    await cluster.start_nodes()
    say("reading the log")
    coordinator = str(cluster.coordinator)
    await asyncio.to_thread(read_log, coordinator, writers.journals, READ_SECONDS_MAX)
    violations += cluster.complaints()
    violations += judge_servers({name: each.logged() for name, each in cluster.servers.items()})
    say("judging")
    found = await asyncio.to_thread(
        judge, writers.journals, writers.partitions, checksums, tuple(cluster.storages)
    )
    found.violations[:0] = violations
    return found


async def missing_replicas(cluster: Cluster) -> list[str]:
    """Return once every replica takes part in its partition's session, or a violation."""
    try:
        async with asyncio.timeout(CURRENT_SECONDS_MAX):
            while True:
                partitions = await status_of_partitions(cluster)
                if all(each["replicas_current"] == len(cluster.storages) for each in partitions):
                    return []
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        return [f"not all replicas take part in their sessions: {partitions}"]


async def status_of_partitions(cluster: Cluster) -> list[dict[str, Any]]:
    """Return what `waltz status` says of each partition. Raises RuntimeError."""
    place = ("--cluster", str(cluster.coordinator), *cluster.trusted)
    done = await asyncio.to_thread(clusters.run_waltz, "status", *place, "--json")
    if not done.stdout:
        raise RuntimeError(f"waltz status: {done.stderr}")
    found: list[dict[str, Any]] = json.loads(done.stdout)["partitions"]
    return found


@asynccontextmanager
async def telling_what_stands(cluster: Cluster, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Say which partitions take no appends, and why, if the block fails."""
    try:
        yield
    except Exception:
        for each in await status_of_partitions(cluster):
            if each["problem"] is not None or each["high_water_mark"] is None:
                say(f"partition {each['partition_id']}: {each}")
        raise
