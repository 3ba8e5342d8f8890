"""The mailbox and the loop that runs a machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from waltz.host import Host, Inspectable
from waltz.machine_shell import STEPS_AT_ONCE_MAX, TURN_STEPS_MAX, Lane, Mailbox, Turns, run
from waltz.system.real_host import real_host

NAME: ContextVar[str] = ContextVar("NAME")


class LoopClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_milliseconds(self) -> int:
        return 0


def host(inspect: Callable[[Inspectable], None] | None = None) -> Host:
    return replace(real_host(None), clock=LoopClock(), inspect=inspect)


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
        await run(machine, mailbox, host(), performed.append)
        assert machine.steps == [["a", "b", "end"]]
        assert performed == ["A", "B", "END"]

    asyncio.run(scenario())


def test_a_deadline_steps_the_machine_without_events() -> None:
    async def scenario() -> None:
        clock = LoopClock()
        machine, mailbox = Recorder(deadline=clock.now()), Mailbox[str](clock, capacity=10)
        task = asyncio.create_task(run(machine, mailbox, host(), lambda _: None))
        while not machine.steps:
            await asyncio.sleep(0)
        mailbox.put("end")
        await task
        assert machine.steps == [[], ["end"]]

    asyncio.run(scenario())


def test_a_machine_is_inspected_after_every_step_before_its_effects() -> None:
    async def scenario() -> None:
        machine, mailbox = Recorder(deadline=0.0), Mailbox[str](LoopClock(), capacity=10)
        course: list[object] = []

        def inspect(inspected: Inspectable) -> None:
            assert inspected is machine
            course.append(len(machine.steps))
            if len(machine.steps) == 1:
                mailbox.put("end")

        await run(machine, mailbox, host(inspect), course.append)
        assert machine.steps == [[], ["end"]]
        assert course == [1, 2, "END"]

    asyncio.run(scenario())


def test_of_a_broken_machine_no_effect_is_carried_out() -> None:
    class Broken(Recorder):
        def check_invariants(self) -> None:
            assert not self.steps, "stepped"

    async def scenario() -> None:
        mailbox = Mailbox[str](LoopClock(), capacity=10)
        performed: list[str] = []
        inspecting = host(lambda machine: machine.check_invariants())
        mailbox.put("a")
        with pytest.raises(AssertionError, match="stepped"):
            await run(Broken(), mailbox, inspecting, performed.append)
        assert performed == []
        mailbox.put("end")
        await run(Broken(), mailbox, host(), performed.append)
        assert performed == ["END"]

    asyncio.run(scenario())


def test_a_step_runs_in_the_context_in_which_the_machine_was_started() -> None:
    async def scenario() -> None:
        mailbox = Mailbox[str](LoopClock(), capacity=10)
        seen: list[str] = []
        NAME.set("of the machine")
        task = asyncio.create_task(
            run(Recorder(), mailbox, host(), lambda _: seen.append(NAME.get()))
        )
        await asyncio.sleep(0)
        NAME.set("of whoever brings an event")
        mailbox.put("end")
        await task
        assert seen == ["of the machine"]

    asyncio.run(scenario())


def test_what_a_step_brings_about_itself_is_the_next_step() -> None:
    async def scenario() -> None:
        machine, mailbox = Recorder(), Mailbox[str](LoopClock(), capacity=10)
        mailbox.put("a")
        await run(machine, mailbox, host(), lambda effect: mailbox.put("end"))
        assert machine.steps == [["a"], ["end"]]

    asyncio.run(scenario())


def test_a_machine_that_keeps_itself_busy_lets_others_of_the_loop_have_their_turn() -> None:
    async def scenario() -> None:
        machine, mailbox = Recorder(), Mailbox[str](LoopClock(), capacity=10)
        mailbox.put("a")
        running = asyncio.create_task(run(machine, mailbox, host(), mailbox.put))
        while len(machine.steps) <= TURN_STEPS_MAX:
            await asyncio.sleep(0)
        mailbox.put("end")
        await running
        assert len(machine.steps) <= 3 * TURN_STEPS_MAX

    asyncio.run(scenario())


def test_large_pieces_are_done_one_per_turn_of_the_loop() -> None:
    async def scenario() -> None:
        lane, done = Lane(), list[str]()
        for name in ("x", "y"):
            lane.put(partial(done.append, name))
        lane.put(lambda: lane.put(partial(done.append, "z")))
        turn = asyncio.create_task(lane.turn())
        seen = []
        for _ in range(6):
            await asyncio.sleep(0)
            seen.append("".join(done))
        assert seen[:2] == ["x", "xy"]
        assert seen[-1] == "xyz"
        await turn

    asyncio.run(scenario())


def test_turns_wait_in_the_lane_while_it_is_used() -> None:
    async def scenario() -> None:
        lane = Lane()
        lane.is_used = True
        performed: list[str] = []
        mailboxes = [Mailbox[str](LoopClock(), capacity=10) for _ in range(2)]
        tasks = [
            asyncio.create_task(
                Turns(Recorder(), mailbox, host(), performed.append, lane=lane).run()
            )
            for mailbox in mailboxes
        ]
        await asyncio.sleep(0)
        for mailbox in mailboxes:
            mailbox.put("a")
        await asyncio.sleep(0)
        assert len(performed) == 1, "one machine per turn of the loop"
        await asyncio.sleep(0)
        assert len(performed) == 2
        lane.is_used = False
        for mailbox in mailboxes:
            mailbox.put("end")
        await asyncio.sleep(0)
        assert len(performed) == 4, "both in one"
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_small_events_are_taken_at_once_in_their_order_and_a_few_per_turn_of_the_loop() -> None:
    async def scenario() -> None:
        machine, mailbox = Recorder(), Mailbox[str](LoopClock(), capacity=100)
        performed: list[str] = []
        turns = Turns(machine, mailbox, host(), performed.append)
        task = asyncio.create_task(turns.run())
        await asyncio.sleep(0)
        for number in range(STEPS_AT_ONCE_MAX + 2):
            turns.take_in_order(f"e{number}")
        assert len(performed) == STEPS_AT_ONCE_MAX
        assert len(mailbox.events) == 2, "they are one step"
        await asyncio.sleep(0)
        assert performed == [f"E{number}" for number in range(STEPS_AT_ONCE_MAX + 2)]
        mailbox.put("first")
        turns.take_in_order("end")
        assert performed[-1] == f"E{STEPS_AT_ONCE_MAX + 1}", "nothing is overtaken"
        await task
        assert performed[-2:] == ["FIRST", "END"]

    asyncio.run(scenario())


def test_what_must_not_wait_is_a_step_of_its_own_before_what_waits() -> None:
    async def scenario() -> None:
        machine, mailbox = Recorder(), Mailbox[str](LoopClock(), capacity=10)
        performed: list[str] = []
        turns = Turns(machine, mailbox, host(), performed.append)
        turns.take_now("early")
        assert performed == [], "nobody runs the machine yet"
        task = asyncio.create_task(turns.run())
        await asyncio.sleep(0)
        mailbox.put("a")
        mailbox.put("end")
        turns.take_now("now")
        assert performed == ["EARLY", "NOW"]
        await task
        assert machine.steps == [["early"], ["now"], ["a", "end"]]
        turns.take_now("late")
        assert len(machine.steps) == 3, "it has closed"

    asyncio.run(scenario())


def test_a_machine_that_breaks_on_what_does_not_wait_ends_as_any_other() -> None:
    class Broken(Recorder):
        def step(self, events: Sequence[str], now: float) -> list[str]:
            raise ValueError(events)

    async def scenario() -> None:
        turns = Turns(Broken(), Mailbox[str](LoopClock(), capacity=10), host(), lambda _: None)
        task = asyncio.create_task(turns.run())
        await asyncio.sleep(0)
        turns.take_now("a")
        turns.take_now("b")
        with pytest.raises(ValueError, match="a"):
            await task

    asyncio.run(scenario())


def test_a_deadline_that_is_put_off_does_not_step_the_machine() -> None:
    @dataclass
    class Patient(Recorder):
        def step(self, events: Sequence[str], now: float) -> list[str]:
            effects = super().step(events, now)
            self.deadline = now + (0.01 if events == ["soon"] else 100.0)
            return effects

    async def scenario() -> None:
        clock = LoopClock()
        machine, mailbox = Patient(), Mailbox[str](clock, capacity=10)
        task = asyncio.create_task(run(machine, mailbox, host(), lambda _: None))
        for event in ("soon", "late"):
            mailbox.put(event)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert machine.steps[-1] == ["late"]
        mailbox.put("end")
        await task
        assert [] not in machine.steps

    asyncio.run(scenario())


def test_a_machine_that_is_not_run_any_more_is_not_stepped() -> None:
    async def scenario() -> None:
        machine, mailbox = Recorder(), Mailbox[str](LoopClock(), capacity=10)
        task = asyncio.create_task(run(machine, mailbox, host(), lambda _: None))
        await asyncio.sleep(0)
        mailbox.put("a")
        task.cancel()
        await asyncio.wait([task])
        mailbox.put("b")
        await asyncio.sleep(0)
        assert len(machine.steps) <= 1
        assert "b" not in str(machine.steps)
        assert mailbox.events

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


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_tasks_that_wait_for_room_in_a_mailbox_go_on_once_its_machine_is_gone(
    is_cancelled: bool,
) -> None:
    async def scenario() -> None:
        machine, mailbox = Recorder(), Mailbox[str](LoopClock(), capacity=1)
        running = asyncio.create_task(run(machine, mailbox, host(), lambda _: None))
        await asyncio.sleep(0)
        if is_cancelled:
            running.cancel()
        else:
            mailbox.put("end")
            while not machine.closed:
                await asyncio.sleep(0)
        mailbox.put("a")
        async with asyncio.timeout(10):
            waiting = asyncio.create_task(mailbox.room())
            await asyncio.wait([running])
            await waiting
            await mailbox.room()

    asyncio.run(scenario())


def test_a_step_is_told_of_once_its_effects_were_performed() -> None:
    async def scenario() -> None:
        mailbox, seen = Mailbox[str](LoopClock(), capacity=10), list[str]()
        turns = Turns(Recorder(), mailbox, host(), seen.append, stepped=partial(seen.append, "-"))
        for event in ("a", "b"):
            mailbox.put(event)
        task = asyncio.create_task(turns.run())
        await asyncio.sleep(0)
        turns.take_now("c")
        mailbox.put("end")
        await task
        assert seen == ["A", "B", "-", "C", "-", "END", "-"]

    asyncio.run(scenario())
