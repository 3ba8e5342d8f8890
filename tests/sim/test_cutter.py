"""The tool of a run that takes cuts."""

from __future__ import annotations

import asyncio
from random import Random

from waltz.sim.applications.cutter import UNEVEN_SECONDS, _UnevenConnection
from waltz.sim.loop import SimulatedLoop
from waltz.sim.simulation import simulate


class Written:
    """A connection that notes what is written to it, and when."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.peer = "there"
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.is_closed = True


def test_what_is_said_comes_late_and_in_order() -> None:
    loop = SimulatedLoop(1)
    under = Written()

    async def play() -> None:
        uneven = _UnevenConnection(under, Random(1))  # type: ignore[arg-type]
        said = [bytes([number]) for number in range(50)]
        for data in said:
            uneven.write(data)
        assert under.written == []
        await asyncio.sleep(2 * max(UNEVEN_SECONDS))
        assert under.written == said
        assert uneven.peer == "there"
        uneven.write(b"farewell")
        uneven.close()
        assert under.written == [*said, b"farewell"]
        assert under.is_closed

    try:
        loop.run_until_complete(play())
    finally:
        loop.shut_down()


def test_attempts_that_faults_have_spoiled_are_void() -> None:
    outcome = simulate(1, "transfers", "moving_partitions")
    assert not outcome.violations
    assert outcome.cuts["void"] > 0
