"""The tool of a run that takes cuts, over connections to servers of uneven length.

Owns when cuts are taken, and what came of them. If all servers were asked at the same moment, no
transaction and its effect would fit between two answers, and a cut without any hold would do.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from waltz.cluster.paths import DEFAULT_ROOT
from waltz.errors import CutNotMadeError, WaltzError
from waltz.host import Connection, Host, Network
from waltz.limits import HOLD_PAUSE_SECONDS
from waltz.operators.cuts_shell import take_cut
from waltz.sim.judges.causality import Marks
from waltz.sim.judges.run_trace import RunTrace
from waltz.types import Address

PAUSE_SECONDS_MAX: Final = 0.3
"""Between two cuts, besides the least time between two holds."""

UNEVEN_SECONDS: Final = (0.0, 0.0, 0.025)
"""The time that each message of the tool takes, besides the network's own: so little that a hold
often outlasts it, and more than a commit and its effect take in most runs."""


class Cutter:
    """Takes cuts as long as clients are at work. Each attempt raises a tide of transfers when it
    connects."""

    def __init__(
        self,
        random: Random,
        trace: RunTrace,
        now: Callable[[], float],
        raise_tide: Callable[[], None],
    ) -> None:
        self.cuts: list[Marks] = []
        self.counts: Counter[str] = Counter()
        """Cuts and attempts, by what came of them."""
        self._random = random
        self._trace = trace
        self._now = now
        self._raise_tide = raise_tide

    async def run(self, host: Host, is_over: Callable[[], bool]) -> None:
        network = _UnevenNetwork(host.network, self._random, self._raise_tide)
        uneven = replace(host, network=network)
        while not is_over():
            await asyncio.sleep(self._random.uniform(0.0, PAUSE_SECONDS_MAX))
            try:
                cut = await take_cut(uneven, DEFAULT_ROOT, on_obstacle=self._note_obstacle)
            except CutNotMadeError:
                self.counts["not made"] += 1
            except WaltzError:  # the coordinator is away
                self.counts["not attempted"] += 1
            else:
                self.counts["made"] += 1
                self.cuts.append(cut.marks)
                self._trace.note(self._now(), "cut", sorted(cut.marks.items()))
            await asyncio.sleep(HOLD_PAUSE_SECONDS)
        await host.coordinator.close()

    def _note_obstacle(self, number: int, obstacles: Sequence[str]) -> None:
        self.counts["void"] += 1
        self._trace.comment(self._now(), f"attempt {number} at a cut: {'; '.join(obstacles)}")


class _UnevenNetwork:
    """The network, where what is said on a connection takes longer each time, or not."""

    def __init__(self, network: Network, random: Random, raise_tide: Callable[[], None]) -> None:
        self._network = network
        self._random = random
        self._raise_tide = raise_tide

    async def connect(self, address: Address, *, name: str | None = None) -> Connection:
        self._raise_tide()
        connection = await self._network.connect(address, name=name)
        uneven: Any = _UnevenConnection(connection, self._random)
        return uneven  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


class _UnevenConnection:
    """A connection whose writes are late, in order."""

    def __init__(self, connection: Connection, random: Random) -> None:
        self._connection = connection
        self._random = random
        self._late: deque[bytes] = deque()

    def write(self, data: bytes) -> None:
        self._late.append(data)
        seconds = self._random.choice(UNEVEN_SECONDS)
        asyncio.get_running_loop().call_later(seconds, self._write_next)

    def _write_next(self) -> None:
        if self._late:
            self._connection.write(self._late.popleft())

    def close(self) -> None:
        while self._late:
            self._connection.write(self._late.popleft())
        self._connection.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
