"""Ends and retries of contexts; the whole way of a context is covered in `test_shell.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.applications import Note
from tests.client.fake_cluster import until
from waltz.client.appends.submission import Submission
from waltz.client.appends.submissions_shell import Submissions
from waltz.client.partitions.client_partition_events import Submitted
from waltz.connections.tasks_shell import Tasks
from waltz.errors import (
    ClientAheadError,
    ClientClosedError,
    OperationTimeoutError,
    PartitionInactiveError,
)
from waltz.types import PartitionId, TransactionId

P0 = PartitionId(0)


class Runner:
    """A partition that keeps what it is given."""

    high_water_mark = TransactionId(4)

    def __init__(self) -> None:
        self.mailbox = self
        self.gate = self
        self.events: list[Submitted] = []
        self.released = 0
        self.error: Exception | None = None

    def put(self, event: Submitted) -> None:
        self.events.append(event)

    def release(self, count: int) -> None:
        self.released += count

    def fail(self, error: Exception) -> None:
        self.error = error


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
            NoJitter(),  # type: ignore[arg-type]
            self._call,
            retry_threads=retry_threads,
        )
        self.submissions.start()

    async def _call(self, function: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return function()

    def admit(self, note: Note) -> Submission:
        return self.submissions.admit(note, P0, holds_room=True)

    async def turn(self) -> None:
        await asyncio.sleep(0.005)


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
        world.submissions.retry([made])
        await world.turn()
        assert world.runner.events == [Submitted([made])]
        assert made.client_high_water_mark == 4
        assert note.story == ["execute"]
        await world.tasks.stop()

    asyncio.run(main())


def test_a_retry_that_ends_gives_its_room_back() -> None:
    async def main() -> None:
        world = World()
        world.submissions.retry(
            [world.admit(Note(write=False)), world.admit(Note(write=ValueError()))]
        )
        await world.turn()
        assert world.runner.released == 2
        assert len(world.submissions) == 0
        await world.tasks.stop()

    asyncio.run(main())


def test_without_retry_threads_a_failed_context_ends_as_false() -> None:
    """PM-41."""

    async def main() -> None:
        world = World(retry_threads=0)
        note = Note()
        world.submissions.retry([world.admit(note)])
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
        world.submissions.retry([made])
        await world.turn()
        assert note.story == ["expired"]
        assert world.runner.events == []
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
        with pytest.raises(PartitionInactiveError):
            world.admit(Note())
        assert len(world.submissions) == 0
        world.submissions.take_up(P0)
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
        assert world.runner.error is error
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
        assert world.runner.released == 2
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
        world.submissions.refuse(error)
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
