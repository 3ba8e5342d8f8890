"""A session number that nobody was given does not become a promise, over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.storage.support import SESSION
from tests.storage.talkers import P0, append, data_talker
from tests.storage.test_storage_node_shell import run_node
from waltz.cluster.partition_metadata import SESSION_CLIMB
from waltz.errors import CoordinatorLostError, StorageError
from waltz.storage.far_sessions_shell import (
    ASKED_TIMES,
    REST_SECONDS,
    SESSION_STEP_MAX,
    FarSessions,
)
from waltz.storage.storage_node_shell import StorageNode
from waltz.types import PartitionId, SessionId
from waltz.wire.storage_protocol import (
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    SuccessResponse,
)

FORGED = SessionId(2**63 - 1)
GIVEN = SessionId(5_000_000)


class Coordinator:
    def __init__(self) -> None:
        self.asked = 0
        self.given = SESSION
        self.is_away = False

    async def latest(self, partition_id: PartitionId) -> SessionId:
        self.asked += 1
        if self.is_away:
            raise CoordinatorLostError("the coordinator is away")
        return self.given


def info_of(session: SessionId) -> LastSessionInfoRequest:
    return LastSessionInfoRequest(session, 7, P0, offline=False)


def test_a_forged_session_closes_nothing_neither_now_nor_after_a_restart(tmp_path: Path) -> None:
    coordinator = Coordinator()

    async def forge(node: StorageNode) -> None:
        server = await data_talker(node)
        assert isinstance(await server.ask(append(0, 0, 1)), SuccessResponse)
        forger = await data_talker(node)
        for above in (SESSION_STEP_MAX + 1, SESSION_STEP_MAX, 1):
            session = SessionId(SESSION + above)
            assert "was given to no server" in await forger.refusal(info_of(session))
        assert "was given to no server" in await forger.refusal(info_of(FORGED))
        assert isinstance(await server.ask(append(1, 1, 1)), SuccessResponse)

    async def go_on(node: StorageNode) -> None:
        server = await data_talker(node)
        assert isinstance(await server.ask(append(0, 2, 1)), SuccessResponse)

    run_node(tmp_path, forge, latest_session=coordinator.latest)
    run_node(tmp_path, go_on, latest_session=coordinator.latest)


def test_a_session_that_the_coordinator_has_given_is_taken_however_far(tmp_path: Path) -> None:
    coordinator = Coordinator()
    coordinator.given = GIVEN

    async def test(node: StorageNode) -> None:
        server = await data_talker(node)
        assert isinstance(await server.ask(info_of(GIVEN)), LastSessionInfoResponse)
        coordinator.given = SessionId(GIVEN + SESSION_CLIMB)
        assert isinstance(await server.ask(info_of(coordinator.given)), LastSessionInfoResponse)
        asked = coordinator.asked
        assert isinstance(await server.ask(info_of(coordinator.given)), LastSessionInfoResponse)
        assert coordinator.asked == asked, "of what is known nobody is asked"

    run_node(tmp_path, test, latest_session=coordinator.latest)


def test_a_coordinator_that_is_a_moment_behind_is_asked_again(tmp_path: Path) -> None:
    coordinator = Coordinator()

    async def late(partition_id: PartitionId) -> SessionId:
        latest = await coordinator.latest(partition_id)
        coordinator.given = GIVEN
        return latest

    async def test(node: StorageNode) -> None:
        server = await data_talker(node)
        assert isinstance(await server.ask(info_of(GIVEN)), LastSessionInfoResponse)

    run_node(tmp_path, test, latest_session=late)
    assert coordinator.asked == 2


def test_while_the_coordinator_is_away_sessions_in_reach_go_on_and_far_ones_wait(
    tmp_path: Path,
) -> None:
    coordinator = Coordinator()
    coordinator.is_away = True

    async def test(node: StorageNode) -> None:
        server = await data_talker(node)
        assert isinstance(await server.ask(info_of(SessionId(9))), LastSessionInfoResponse)
        assert "does not say whether" in await server.refusal(info_of(GIVEN))
        coordinator.is_away, coordinator.given = False, GIVEN

    run_node(tmp_path, test, latest_session=coordinator.latest)
    assert coordinator.asked == 1, "others do not wait for it as well"


def test_a_coordinator_that_does_not_answer_is_asked_again_after_a_rest() -> None:
    async def test() -> None:
        clock, coordinator = HandClock(), Coordinator()
        coordinator.is_away = True
        far = FarSessions(clock, coordinator.latest)
        with pytest.raises(StorageError, match="does not say whether"):
            await far.check(P0, GIVEN, SESSION)
        coordinator.is_away, coordinator.given = False, GIVEN
        with pytest.raises(StorageError, match="does not say whether"):
            await far.check(P0, GIVEN, SESSION)
        clock.seconds += REST_SECONDS
        await far.check(P0, GIVEN, SESSION)

    asyncio.run(test())


class HandClock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def wall_milliseconds(self) -> int:
        return 0


def test_many_that_come_at_once_share_the_questions() -> None:
    async def test() -> None:
        coordinator = Coordinator()
        far = FarSessions(HandClock(), coordinator.latest)

        async def forge() -> None:
            with pytest.raises(StorageError):
                await far.check(P0, FORGED, SESSION)

        await asyncio.gather(*(forge() for _ in range(50)))
        assert coordinator.asked == ASKED_TIMES
        await forge()
        assert coordinator.asked == 2 * ASKED_TIMES

    asyncio.run(test())


def test_an_answer_to_an_earlier_question_does_not_count() -> None:
    """The session was given after it was asked."""

    async def test() -> None:
        coordinator = Coordinator()
        begun, may_answer = asyncio.Event(), asyncio.Event()

        async def slow(partition_id: PartitionId) -> SessionId:
            latest = await coordinator.latest(partition_id)
            begun.set()
            await may_answer.wait()
            return latest

        far = FarSessions(HandClock(), slow)
        first = asyncio.create_task(far.check(P0, FORGED, SESSION))
        await begun.wait()
        coordinator.given = GIVEN
        second = asyncio.create_task(far.check(P0, GIVEN, SESSION))
        await asyncio.sleep(0)
        may_answer.set()
        await second
        with pytest.raises(StorageError):
            await first

    asyncio.run(test())


def test_one_that_gives_up_does_not_take_the_question_from_the_others() -> None:
    async def test() -> None:
        coordinator = Coordinator()
        coordinator.given = GIVEN
        far = FarSessions(HandClock(), coordinator.latest)
        impatient = asyncio.create_task(far.check(P0, GIVEN, SESSION))
        patient = asyncio.create_task(far.check(P0, GIVEN, SESSION))
        await asyncio.sleep(0)
        impatient.cancel()
        await patient
        assert coordinator.asked == 1

    asyncio.run(test())
