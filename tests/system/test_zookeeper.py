"""What is ZooKeeper's and kazoo's own; what all coordinators promise is in `test_coordinators.py`.

Between the two sits a proxy, which keeps back what is to be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from kazoo import exceptions as kazoo_errors

from tests.live.faults import Proxy, Side
from tests.system.coordinators import answered, created
from tests.zookeepers import RunningZooKeeper
from waltz.errors import (
    CoordinationError,
    CoordinatorLostError,
    NodeExistsError,
    NoNodeError,
    VersionConflictError,
)
from waltz.system.zookeeper import (
    ZOOKEEPER_REQUEST_BYTES_MAX,
    ZOOKEEPER_REQUEST_BYTES_OVERHEAD,
    ZooKeeperCoordinator,
    translated_error,
)

pytestmark = pytest.mark.processes

_names = count()


SESSION_SECONDS = 3.0
"""A session that is to end by its time-out; a busy machine holds no process up for as long."""

CALL_SECONDS_MAX = 2.0
"""A call that is to be lost."""


class Scene:
    """A process whose connection runs through a proxy, another one that is connected directly."""

    def __init__(
        self, zookeeper: RunningZooKeeper, session_seconds: float, call_seconds_max: float
    ) -> None:
        self.root = f"/own-{next(_names)}"
        self.proxy = Proxy(zookeeper.address)
        self.direct = ZooKeeperCoordinator(str(zookeeper.address))
        self._session_seconds = session_seconds
        self._call_seconds_max = call_seconds_max
        self._doors = [self.direct]

    async def start(self) -> None:
        await self.proxy.start()
        await self.direct.create(self.root, None)

    def door(self, servers: str = "") -> ZooKeeperCoordinator:
        door = ZooKeeperCoordinator(
            servers or str(self.proxy.address),
            session_seconds=self._session_seconds,
            call_seconds_max=self._call_seconds_max,
        )
        self._doors.append(door)
        return door

    async def until_children(self, *names: str) -> None:
        while await self.direct.children(self.root) != list(names):
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        for door in self._doors:
            await door.close()
        await self.proxy.stop()


def play(
    zookeeper: RunningZooKeeper,
    story: Callable[[Scene], Coroutine[Any, Any, None]],
    *,
    session_seconds: float = 10.0,
    call_seconds_max: float = 60.0,
) -> None:
    """Play `story`; where a call is to be lost, `call_seconds_max` says when."""

    async def main() -> None:
        scene = Scene(zookeeper, session_seconds, call_seconds_max)
        await scene.start()
        try:
            await story(scene)
        finally:
            await scene.close()

    asyncio.run(main())


def test_a_call_whose_answer_is_lost_is_unknown_and_made_once(zookeeper: RunningZooKeeper) -> None:
    """CM-27: kazoo would have made it again, and one server would have two nodes."""

    async def story(scene: Scene) -> None:
        door, prefix = scene.door(), f"{scene.root}/s_"
        await door.read(scene.root)
        scene.proxy.hold(Side.ANSWERS)
        creating = asyncio.ensure_future(door.create(prefix, b"", sequential=True))
        await scene.until_children("s_0000000000")
        assert not creating.done()
        scene.proxy.cut()
        scene.proxy.let_go(Side.ANSWERS)
        with pytest.raises(CoordinatorLostError) as raised:
            await creating
        assert raised.value.may_be_written
        assert await door.children(scene.root) == ["s_0000000000"]
        assert await scene.direct.children(scene.root) == ["s_0000000000"]

    play(zookeeper, story)


def test_what_was_asked_for_while_nobody_answered_is_not_done_later(
    zookeeper: RunningZooKeeper,
) -> None:
    """CM-27: a server that tried for an hour does not come back with a hundred nodes."""

    async def story(scene: Scene) -> None:
        door, prefix = scene.door(), f"{scene.root}/s_"
        await answered(lambda: door.read(scene.root))
        address = scene.proxy.address
        await scene.proxy.stop()
        with pytest.raises(CoordinatorLostError):
            await door.write(scene.root, b"", version=0)
        calls = [door.create(prefix, b"", ephemeral=True, sequential=True) for _ in range(20)]
        waiting = [asyncio.ensure_future(call) for call in calls]
        # Long before the session ends, with which kazoo forgets what it has kept.
        await asyncio.wait(waiting, timeout=60)
        for call in waiting:
            call.cancel()
        await scene.proxy.start(address)
        await created(door, f"{scene.root}/last", b"", ephemeral=False)
        assert await scene.direct.children(scene.root) == ["last"]

        assert all(isinstance(call.exception(), CoordinatorLostError) for call in waiting)

    play(zookeeper, story, session_seconds=100.0, call_seconds_max=CALL_SECONDS_MAX)


def test_a_lost_read_is_asked_again_and_a_lost_wait_goes_on(zookeeper: RunningZooKeeper) -> None:
    async def story(scene: Scene) -> None:
        door = scene.door()
        seen = await door.read(scene.root)
        waiting = asyncio.ensure_future(door.changed(scene.root, seen))
        await door.read(scene.root)
        scene.proxy.hold(Side.ANSWERS)
        reading = asyncio.ensure_future(door.children(scene.root))
        await scene.direct.create(f"{scene.root}/new", None)
        scene.proxy.cut()
        scene.proxy.let_go(Side.ANSWERS)
        assert await reading == ["new"]
        await waiting

    play(zookeeper, story)


def test_a_server_that_falls_silent_is_noticed(zookeeper: RunningZooKeeper) -> None:
    """CM-27: and the session that ends meanwhile is replaced."""

    async def story(scene: Scene) -> None:
        door, path = scene.door(), f"{scene.root}/e"
        await answered(lambda: door.read(scene.root))
        await door.create(path, b"", ephemeral=True)
        seen = await scene.direct.read(path)
        scene.proxy.hold(Side.REQUESTS)
        with pytest.raises(CoordinatorLostError):
            await door.write(path, b"", version=0)
        await scene.direct.changed(path, seen)
        scene.proxy.cut()
        scene.proxy.let_go(Side.REQUESTS)
        assert await answered(lambda: door.children(scene.root)) == []
        await door.create(path, b"", ephemeral=True)
        await scene.until_children("e")

    play(zookeeper, story, session_seconds=SESSION_SECONDS, call_seconds_max=CALL_SECONDS_MAX)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_bytes_that_kazoo_does_not_understand_end_a_session_and_no_more(
    zookeeper: RunningZooKeeper,
) -> None:
    """CM-27: kazoo's thread ends over an answer to nothing; another client takes its place."""

    async def story(scene: Scene) -> None:
        door, path = scene.door(), f"{scene.root}/e"
        await door.create(path, b"", ephemeral=True)
        seen = await scene.direct.read(path)
        waiting = asyncio.ensure_future(answered(lambda: door.changed(f"{scene.root}/late", None)))
        await door.read(scene.root)
        for link in scene.proxy.links:
            link.write(Side.ANSWERS, (16).to_bytes(4) + (77).to_bytes(4) + bytes(12))
        await scene.direct.changed(path, seen)
        assert await answered(lambda: door.children(scene.root)) == []
        await door.create(path, b"", ephemeral=True)
        await scene.direct.create(f"{scene.root}/late", b"")
        await waiting

    play(zookeeper, story, session_seconds=SESSION_SECONDS)


def test_closing_while_nobody_answers_takes_no_longer(zookeeper: RunningZooKeeper) -> None:
    async def story(scene: Scene) -> None:
        door = scene.door()
        await door.create(f"{scene.root}/e", b"", ephemeral=True)
        scene.proxy.hold(Side.REQUESTS)
        async with asyncio.timeout(60):  # the answer never comes
            await door.close()
        scene.proxy.cut()
        await scene.until_children()  # the session ends by its time-out

    play(zookeeper, story, session_seconds=SESSION_SECONDS)


def test_nobody_there_is_told_in_bounded_time(zookeeper: RunningZooKeeper) -> None:
    async def story(scene: Scene) -> None:
        await scene.proxy.stop()
        door = scene.door()
        with pytest.raises(CoordinatorLostError, match=f"no ZooKeeper .* {scene.proxy.address}"):
            await door.read("/")
        await door.close()
        await scene.proxy.start()

    play(zookeeper, story, call_seconds_max=CALL_SECONDS_MAX)


def test_one_of_several_servers_is_enough(zookeeper: RunningZooKeeper) -> None:
    async def story(scene: Scene) -> None:
        absent = scene.proxy.address
        await scene.proxy.stop()
        await scene.proxy.start()
        for servers in (f"{absent},{scene.proxy.address}", f"{scene.proxy.address},{absent}"):
            assert await scene.door(servers).children(scene.root) == []

    play(zookeeper, story)


def test_waits_that_are_given_up_leave_one_watch(zookeeper: RunningZooKeeper) -> None:
    async def story(scene: Scene) -> None:
        door = scene.door()
        seen = await door.read(scene.root)
        for _ in range(50):
            waiting = asyncio.ensure_future(door.changed(scene.root, seen))
            await door.read(scene.root)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
        assert len(door._client._data_watchers[scene.root]) <= 1
        assert len(door._client._child_watchers[scene.root]) <= 1
        assert not door._waiting

    play(zookeeper, story)


def test_what_would_end_the_connection_is_refused_before(zookeeper: RunningZooKeeper) -> None:
    async def story(scene: Scene) -> None:
        door, path = scene.door(), f"{scene.root}/large"
        largest = ZOOKEEPER_REQUEST_BYTES_MAX - ZOOKEEPER_REQUEST_BYTES_OVERHEAD - len(path)
        await door.create(path, bytes(largest))
        with pytest.raises(CoordinationError, match=f"the limit is {largest}"):
            await door.write(path, bytes(largest + 1), version=0)
        assert await door.write(path, bytes(largest), version=0) == 1
        node = await door.read(path)
        assert len(node.data or b"") == largest

    play(zookeeper, story)


def test_everybody_may_do_everything_with_a_node(zookeeper: RunningZooKeeper) -> None:
    """CM-02: the original's access list, world:anyone:31."""

    async def story(scene: Scene) -> None:
        door = scene.door()
        await door.read(scene.root)
        (entry,), _ = await asyncio.to_thread(door._client.get_acls, scene.root)
        assert (entry.id.scheme, entry.id.id, entry.perms) == ("world", "anyone", 31)

    play(zookeeper, story)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (kazoo_errors.NoNodeError, NoNodeError),
        (kazoo_errors.NodeExistsError, NodeExistsError),
        (kazoo_errors.BadVersionError, VersionConflictError),
        (kazoo_errors.NoAuthError, CoordinationError),
        (kazoo_errors.QuotaExceededError, CoordinationError),
        (kazoo_errors.ConnectionLoss, CoordinatorLostError),
        (kazoo_errors.SessionExpiredError, CoordinatorLostError),
        (kazoo_errors.ConnectionClosedError, CoordinatorLostError),
        (kazoo_errors.SessionMovedError, CoordinatorLostError),
        (kazoo_errors.RequestTimeoutError, CoordinatorLostError),
        (kazoo_errors.SystemZookeeperError, CoordinatorLostError),
        (RuntimeError, CoordinatorLostError),
    ],
)
def test_only_a_refusal_says_that_nothing_was_done(
    error: type[Exception], expected: type[Exception]
) -> None:
    translated = translated_error(error(), "h:1")
    assert isinstance(translated, expected)
    assert translated.may_be_written == (expected is CoordinatorLostError)
