"""Adds partitions to the cluster of a run, as operators would whose processes die in between.

Owns which operator begins, which die and which one finishes, with the code that operators use. The
plan chooses the number of partitions and the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from waltz.cluster.growing_shell import read_counts
from waltz.errors import (
    ConfigurationError,
    CoordinatorLostError,
    RemoteStorageError,
    UnavailableError,
    VersionConflictError,
)
from waltz.host import Host
from waltz.operators.cluster_growth_shell import add_partitions, plan_growth
from waltz.sim.faults.kinds import AddedPartitions

TRIES_MAX: Final = 200
TRY_AGAIN_SECONDS: Final = 1.0
"""Seconds before another attempt: nodes and coordinators that are away come back."""

TROUBLES: Final = (
    ConfigurationError,
    CoordinatorLostError,
    RemoteStorageError,
    UnavailableError,
    VersionConflictError,
)
"""Errors after which an operator may try again."""

Act = Callable[[Host], Coroutine[Any, Any, None]]
Run = Callable[[Act, float | None], Coroutine[Any, Any, None]]
"""Lets an operator act; if seconds are given, and it is not done by then, it dies."""


async def add_as_operators(fault: AddedPartitions, run: Run) -> None:
    """Return once the cluster has that many partitions, or more through another fault.

    Raises the error of the last operator, if none succeeds.
    """

    async def act(host: Host) -> None:
        counts = await read_counts(host.coordinator)
        if fault.to > min(counts.cluster, counts.assigned or fault.to - 1):
            plan = await plan_growth(host, fault.to, despite_earlier_clients=True)
            await add_partitions(host, plan)

    for seconds in fault.killed_after:
        with suppress(*TROUBLES):
            await run(act, seconds)
    for _ in range(TRIES_MAX):
        with suppress(*TROUBLES):
            await run(act, None)
            return
        await asyncio.sleep(TRY_AGAIN_SECONDS)
    await run(act, None)
