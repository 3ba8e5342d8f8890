"""Ends and retries of contexts; the whole way of a context is covered in `test_client_shell.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.client.applications import Note
from tests.client.fake_cluster import until
from waltz.client.appends.gate import Gate
from waltz.client.appends.submission import Submission
from waltz.client.appends.submissions_shell import Submissions
from waltz.client.client_options import ClientOptions
from waltz.client.partitions.client_partition_events import Submitted
from waltz.client.transaction import TransactionBuilder
from waltz.connections.tasks_shell import Tasks
from waltz.errors import (
    AlreadyClosedError,
    ClientAheadError,
    ClientClosedError,
    NotFoundError,
    OperationTimeoutError,
    PartitionInactiveError,
)
from waltz.system.clock import RealClock
from waltz.types import PartitionId, TransactionId

P0 = PartitionId(0)


class Runner:
    """A partition that keeps what it is given."""

    def __init__(self) -> None:
        self.mailbox = self
        self.application = SimpleNamespace(high_water_mark=TransactionId(4))
        self.partition_id = P0
        self.gate = Gate(ROOM)
        self.gate.set_mounted(True)
        self.events: list[Submitted] = []

    def put(self, event: Submitted) -> None:
        self.events.append(event)

    def room_left(self) -> int:
        count = 0
        while self.gate.take_room():
            count += 1
        self.gate.release(count)
        return count


ROOM = 8


class NoJitter:
    def uniform(self, low: float, high: float) -> float:
        return low


class World:
    def __init__(self, retry_threads: int = 1) -> None:
        self.runner = Runner()
        self.tasks = Tasks(pytest.fail)  # type: ignore[arg-type]
        self.submissions = Submissions(
            {P0: self.runner},  # type: ignore[dict-item]
            self.tasks,
            SimpleNamespace(clock=RealClock(), random=NoJitter()),  # type: ignore[arg-type]
            ClientOptions(retry_threads=retry_threads),
            self._call,
        )
        self.submissions.partition_count = 1
        self.submissions.retries.start()

    async def _call(self, function: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return function()

    def admit(self, note: Note) -> Submission:
        made = self.submissions.new(note)
        assert self.submissions.begin(made, waits=True) is None
        return made

    async def turn(self) -> None:
        await asyncio.sleep(0.005)


def test_what_has_no_room_waits_and_is_registered_once_it_has() -> None:
    """PM-42; inside a callback nothing waits."""

    async def main() -> None:
        world = World()
        several = [world.admit(Note()) for _ in range(ROOM)]
        late = world.submissions.new(Note(timeout_seconds=1.0))
        entry = world.submissions.begin(late, waits=True)
        assert entry is not None
        entry.wake = lambda: None
        assert entry.step(0.0) is not None
        assert len(world.submissions) == ROOM
        inside = world.submissions.new(Note())
        assert world.submissions.begin(inside, waits=False) is None
        assert len(world.submissions) == ROOM + 1
        world.submissions.finish(inside)
        assert world.runner.room_left() == 0
        world.submissions.finish(several[0])
        assert entry.step(0.0) is None
        entry.leave()
        world.submissions.register(late, holds_room=True)
        assert world.runner.room_left() == 0
        world.submissions.finish(late)
        assert world.runner.room_left() == 1
        await world.tasks.stop()

    asyncio.run(main())


def test_what_cannot_be_admitted_is_refused_with_the_reason() -> None:
    """PM-06."""

    async def main() -> None:
        world = World()
        world.submissions.partition_count = 2
        with pytest.raises(NotFoundError):
            world.submissions.begin(world.submissions.new(Note(partition=2)), waits=True)
        with pytest.raises(PartitionInactiveError, match=r"partitions are \[0\]"):
            world.submissions.begin(world.submissions.new(Note(partition=1)), waits=True)
        world.submissions.error = AlreadyClosedError()
        with pytest.raises(AlreadyClosedError):
            world.submissions.begin(world.submissions.new(Note(partition=2)), waits=True)
        assert len(world.submissions) == 0
        await world.tasks.stop()

    asyncio.run(main())


def test_many_hand_overs_wake_the_loop_once() -> None:
    async def main() -> None:
        world = World()
        made = [world.admit(Note()) for _ in range(5)]
        for each in made:
            world.submissions.hand_over(each)
        await world.turn()
        assert world.runner.events == [Submitted(made)]
        assert len(world.submissions) == 5
        await world.tasks.stop()

    asyncio.run(main())


def test_a_failed_context_is_executed_again_on_the_present_mark() -> None:
    """PM-40."""

    async def main() -> None:
        world = World()
        note = Note()
        made = world.admit(note)
        world.submissions.retries.retry([made])
        await world.turn()
        assert world.runner.events == [Submitted([made])]
        assert made.client_high_water_mark == 4
        assert note.story == ["execute"]
        await world.tasks.stop()

    asyncio.run(main())


def test_a_retry_that_ends_gives_its_room_back() -> None:
    async def main() -> None:
        world = World()
        world.submissions.retries.retry(
            [world.admit(Note(write=False)), world.admit(Note(write=ValueError()))]
        )
        await world.turn()
        assert world.runner.room_left() == ROOM
        assert len(world.submissions) == 0
        await world.tasks.stop()

    asyncio.run(main())


def test_without_retry_threads_a_failed_context_ends_as_false() -> None:
    """PM-41."""

    async def main() -> None:
        world = World(retry_threads=0)
        note = Note()
        world.submissions.retries.retry([world.admit(note)])
        await world.turn()
        assert note.story == [False]
        await world.tasks.stop()

    asyncio.run(main())


def test_a_context_that_expired_is_not_executed_again() -> None:
    """PM-14."""

    async def main() -> None:
        world = World()
        note = Note(timeout_seconds=0.001)
        made = world.admit(note)
        world.submissions.expire_in_time(made)
        await world.turn()
        world.submissions.retries.retry([made])
        await world.turn()
        assert note.story == ["expired"]
        assert world.runner.events == []
        await world.tasks.stop()

    asyncio.run(main())


def test_a_context_that_expires_behind_a_slow_one_is_called_no_more() -> None:
    """PM-14: both are executed again at once, one after the other."""

    async def main() -> None:
        world = World()
        note = Note()
        behind = world.admit(note)
        behind.lock_failure = TransactionId(3)

        class Slow(Note):
            def execute(self, builder: TransactionBuilder) -> bool:
                world.submissions._expire(behind)
                return super().execute(builder)

        slow = world.admit(Slow())
        world.submissions.retries.retry([slow, behind])
        await until(lambda: bool(world.runner.events))
        await world.turn()
        assert note.story == ["expired"]
        assert world.runner.events == [Submitted([slow])]
        await world.tasks.stop()

    asyncio.run(main())


def test_what_a_context_has_waited_for_room_is_part_of_its_time() -> None:
    """PM-14: an hour, of which nearly all has passed."""

    async def main() -> None:
        world = World()
        note = Note(timeout_seconds=3600.0)
        made = world.admit(note)
        made.waited_seconds = 3599.999
        world.submissions.expire_in_time(made)
        await until(lambda: note.story == ["expired"])
        await world.tasks.stop()

    asyncio.run(main())


def test_nobody_is_admitted_to_a_partition_that_was_given_up_until_it_is_taken_up() -> None:
    """PM-35, CI-28."""

    async def main() -> None:
        world = World()
        error = PartitionInactiveError("not active")
        world.submissions.give_up(P0, error)
        made = world.submissions.new(Note())
        with pytest.raises(PartitionInactiveError):
            world.submissions.begin(made, waits=False)
        entry = world.submissions.begin(made, waits=True)
        assert entry is not None
        with pytest.raises(PartitionInactiveError):
            entry.step(0.0)
        assert len(world.submissions) == 0
        world.submissions.take_up(P0)
        world.runner.gate = Gate(ROOM)
        world.runner.gate.set_mounted(True)
        world.admit(Note())
        assert len(world.submissions) == 1
        await world.tasks.stop()

    asyncio.run(main())


def test_giving_up_a_partition_tells_its_contexts() -> None:
    """CI-12."""

    async def main() -> None:
        world = World()
        note, error = Note(), ClientAheadError("ahead")
        world.admit(note)
        world.submissions.give_up(P0, error)
        await world.turn()
        assert note.story == [error]
        assert world.runner.gate.error is error
        await world.tasks.stop()

    asyncio.run(main())


def test_a_flush_waits_for_those_before_it_only() -> None:
    """PM-37."""

    async def main() -> None:
        world = World()
        before = world.admit(Note())
        flushing = asyncio.create_task(world.submissions.flush(None, lambda: None))
        await asyncio.sleep(0)
        after = world.admit(Note())
        world.submissions.finish(after)
        await world.turn()
        assert not flushing.done()
        world.submissions.finish(before)
        world.submissions.finish(before)
        await flushing
        assert world.runner.room_left() == ROOM
        world.admit(Note())
        with pytest.raises(OperationTimeoutError, match="1 transactions"):
            await world.submissions.flush(0.001, lambda: None)
        await world.tasks.stop()

    asyncio.run(main())


def test_closing_tells_everybody_once_and_admits_nobody() -> None:
    """PM-15, PM-44."""

    async def main() -> None:
        world = World()
        note, error = Note(), ClientClosedError("closed")
        finished: list[Exception | None] = []
        world.admit(note).on_finished = lambda _, error: finished.append(error)
        world.submissions.error = error
        await world.submissions.end_all(error)
        await world.submissions.end_all(error)
        assert note.story == [error]
        assert finished == [error]
        with pytest.raises(ClientClosedError):
            world.admit(Note())
        await world.tasks.stop()

    asyncio.run(main())


def test_a_context_that_expires_while_its_client_closes_is_told() -> None:
    """PM-14, PM-44: its verdict is claimed, so that closing would not tell it anything."""

    async def main() -> None:
        world = World()
        note, error = Note(timeout_seconds=0.0), ClientClosedError("closed")
        made = world.admit(note)
        world.submissions.expire_in_time(made)
        while made.undecided:
            await asyncio.sleep(0)
        assert note.story == []
        await world.submissions.end_all(error)
        await world.tasks.stop()
        assert note.story == ["expired"]

    asyncio.run(main())


def test_a_flush_sends_what_an_interrupted_submit_has_handed_over() -> None:
    """By Ctrl-C before the loop was woken: nobody may come after it who wakes the loop."""

    async def main() -> None:
        world = World()
        made = world.admit(Note())
        wake = world.submissions._wake

        def interrupted(function: Callable[[], None]) -> None:
            raise KeyboardInterrupt

        world.submissions._wake = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            world.submissions.hand_over(made)
        world.submissions._wake = wake  # type: ignore[method-assign]
        flushing = asyncio.create_task(world.submissions.flush(60, lambda: None))
        await until(lambda: world.runner.events == [Submitted([made])])
        world.submissions.finish(made)
        await flushing
        await world.tasks.stop()

    asyncio.run(main())


class Closing(dict[int, Submission]):
    """Forgets at once what is registered, as closing does when it comes in between."""

    def __setitem__(self, number: int, submission: Submission) -> None:
        pass


def test_a_submit_that_is_registered_while_its_client_closes_is_told_that_it_is_closed() -> None:
    async def main() -> None:
        world = World()
        made = world.submissions.new(Note())
        world.submissions._unfinished = Closing()
        world.submissions.error = AlreadyClosedError()
        with pytest.raises(AlreadyClosedError):
            world.submissions.register(made, holds_room=False)
        await world.tasks.stop()

    asyncio.run(main())
