"""The killer: processes die by SIGKILL while customers order, drawn from a seed.

A kill comes after a number of orders, not after a time, so that a slow machine is not struck more
often than it recovers. Each victim is started again by its supervisor: a process of the cluster by
`waltz up`, a worker by its service, a service by the run. Others may die meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from examples.shop.trial.services import ServiceProcess

LOOK_SECONDS: Final = 0.01
"""Seconds between two looks at the number of orders."""

TOGETHER_SHARE: Final = 0.2
"""The share of kills in which the next victim dies at the same moment."""


class Killer:
    """Kills processes; `kills` counts them by what they were."""

    def __init__(
        self,
        services: Sequence[ServiceProcess],
        cluster: Callable[[], dict[str, int]],
        *,
        orders: int,
        kills: int,
        random: Random,
    ) -> None:
        """`cluster` returns names and process IDs of servers and storage nodes; the `kills` are
        spread over `orders`."""
        self._services, self._cluster, self._random = services, cluster, random
        self._at = sorted(random.uniform(0.02, 0.98) * orders for _ in range(kills))
        for place in range(1, kills):
            if random.random() < TOGETHER_SHARE:
                self._at[place] = self._at[place - 1]
        self.kills: Counter[str] = Counter()

    async def kill(self, orders: Callable[[], int]) -> None:
        """Kill whenever the number of `orders` has come to where the next kill is due."""
        for at in self._at:
            while orders() < at:
                await asyncio.sleep(LOOK_SECONDS)
            while not self._kill_one():
                await asyncio.sleep(LOOK_SECONDS)

    def _kill_one(self) -> bool:
        """Kill a process that is drawn; return whether it was there: it may be just starting."""
        cluster = self._cluster()
        name = self._random.choice([*sorted(cluster), *(each.name for each in self._services)])
        if name in cluster:
            return self._killed(cluster[name], name)
        service = next(each for each in self._services if each.name == name)
        workers = service.workers()
        if not workers:
            return False
        if self._random.random() < 0.5:
            return self._killed(self._random.choice(workers), f"a worker of {name}")
        self.kills[name] += 1
        service.kill()
        return True

    def _killed(self, pid: int, name: str) -> bool:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.kills[name] += 1
        return True
