"""The mailbox and the loop that runs a machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from waltz.shell import Mailbox, run


class LoopClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_milliseconds(self) -> int:
        return 0


@dataclass
class Recorder:
    """A machine that remembers its steps and ends at the word `end`."""

    closed: bool = False
    deadline: float | None = None
    steps: list[list[str]] = field(default_factory=list)

    def step(self, events: Sequence[str], now: float) -> list[str]:
        self.steps.append(list(events))
        self.deadline = None
        self.closed = "end" in events
        return [event.upper() for event in events]

    def check_invariants(self) -> None: ...


def test_all_that_waits_is_one_step() -> None:
    async def scenario() -> None:
        machine, mailbox = Recorder(), Mailbox[str](LoopClock(), capacity=10)
        performed: list[str] = []
        for event in ("a", "b", "end"):
            mailbox.put(event)
        await run(machine, mailbox, LoopClock(), performed.append)
        assert machine.steps == [["a", "b", "end"]]
        assert performed == ["A", "B", "END"]

    asyncio.run(scenario())


def test_a_deadline_steps_the_machine_without_events() -> None:
    async def scenario() -> None:
        clock = LoopClock()
        machine, mailbox = Recorder(deadline=clock.now()), Mailbox[str](clock, capacity=10)
        task = asyncio.create_task(run(machine, mailbox, clock, lambda _: None))
        while not machine.steps:
            await asyncio.sleep(0)
        mailbox.put("end")
        await task
        assert machine.steps == [[], ["end"]]

    asyncio.run(scenario())


def test_room_is_given_once_the_mailbox_was_drained() -> None:
    async def scenario() -> None:
        mailbox = Mailbox[str](LoopClock(), capacity=2)
        mailbox.put("a")
        await mailbox.room()
        mailbox.put("b")
        waiting = asyncio.create_task(mailbox.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await mailbox.drain(until=None) == ["a", "b"]
        await waiting

    asyncio.run(scenario())
