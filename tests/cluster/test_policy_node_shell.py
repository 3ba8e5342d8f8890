"""The policy that the coordinator keeps, followed on all three coordinators, as a server and as a
storage node follow it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.shares import one_in
from tests.system.coordinators import (
    Play,
    Stage,
    answered,
    eventually,
    play_embedded,
    play_simulated,
    play_zookeeper,
)
from tests.zookeepers import RunningZooKeeper, running_zookeeper
from waltz.access.policy import Mode, Policy, Verb, decide
from waltz.access.policy_text import POLICY_BYTES_MAX
from waltz.access.policy_watch_shell import REVISIONS, AccessConfig, PolicyWatch, StoredPolicy
from waltz.access.principals import ANONYMOUS_PRINCIPAL, parse_pattern
from waltz.cluster.kept_coordinator_shell import KeptCoordinator
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.cluster.policy_node_shell import (
    AskedPolicyNode,
    WatchedPolicyNode,
    read_policy_node,
    write_policy_node,
)
from waltz.errors import ConfigurationError
from waltz.host import Coordinator, Host
from waltz.types import PartitionId

PATH = ClusterPaths().policy
TEXT = """
version: {version}
mode: deny
default: deny
roles: {{reader: {{verbs: [read], partitions: all}}}}
grants: {{"CN=spark": [reader]}}
"""
FOLLOWING = AccessConfig(follows_coordinator=True)

_chroots = count()


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(
    params=["embedded", "simulated", pytest.param("zookeeper", marks=pytest.mark.processes)]
)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    """Plays a story on one of the coordinators, with an empty tree."""
    if request.param == "embedded":
        return functools.partial(play_embedded, tmp_path / "coordinator.json")
    if request.param == "simulated":
        return play_simulated
    zookeeper: RunningZooKeeper = request.getfixturevalue("zookeeper")
    return functools.partial(play_zookeeper, zookeeper, f"/policy-{next(_chroots)}")


def text(version: int) -> bytes:
    return TEXT.format(version=version).encode()


class Followed:
    """A watch that follows the node, the versions by which it revised, and the node's writer."""

    def __init__(
        self, host: Host, writer: Coordinator, kind: str, access: AccessConfig = FOLLOWING
    ) -> None:
        self.writer = writer
        self.revised: list[int] = []
        self._kept = KeptCoordinator(lambda: host.coordinator)
        stored: StoredPolicy = (
            WatchedPolicyNode(host.coordinator, DEFAULT_ROOT)
            if kind == "watched"
            else AskedPolicyNode(self._kept, DEFAULT_ROOT)
        )
        self.watch = PolicyWatch(host, access, self._revise, stored=stored)

    async def _revise(self, policy: Policy) -> None:
        self.revised.append(policy.version)

    @property
    def version(self) -> int:
        return 0 if self.watch.policy is None else self.watch.policy.version

    async def store(self, content: bytes) -> None:
        """Store a text, whatever is there."""

        async def stored() -> bool:
            over = await read_policy_node(self.writer, DEFAULT_ROOT)
            if over is not None and over.data == content:
                return True
            return await write_policy_node(self.writer, DEFAULT_ROOT, content, over=over)

        await eventually(stored)

    async def is_so(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def followed(
    stage: Stage, kind: str, first: bytes | None, access: AccessConfig = FOLLOWING
) -> AsyncIterator[Followed]:
    writer = stage.host().coordinator
    await answered(lambda: writer.create(DEFAULT_ROOT, None))
    scene = Followed(stage.host(), writer, kind, access)
    if first is not None:
        await scene.store(first)
    await scene.watch.start()
    try:
        yield scene
    finally:
        await scene.watch.stop()


KINDS = pytest.mark.parametrize("kind", ["watched", "asked"])


@KINDS
def test_a_node_that_comes_later_is_in_force_and_so_is_what_replaces_it(
    play: Play, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stage: Stage) -> None:
        async with followed(stage, kind, None) as scene:
            assert scene.version == 0
            await scene.store(text(3))
            await scene.is_so(lambda: len(scene.revised) == REVISIONS)
            assert scene.watch.policy is not None
            assert scene.watch.policy.mode is Mode.DENY
            await scene.store(text(4))
            await scene.is_so(lambda: scene.revised == [3] * REVISIONS + [4] * REVISIONS)

    play(story)
    (line,) = [each.getMessage() for each in caplog.records if "policy_absent" in each.msg]
    assert f"there is no policy at the coordinator's node {PATH} yet" in line


@KINDS
def test_while_a_policy_is_demanded_and_there_is_none_only_break_glass_may_do_something(
    play: Play, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    glass = (parse_pattern("CN=ops"),)
    access = AccessConfig(follows_coordinator=True, demands_policy=True, break_glass=glass)

    async def story(stage: Stage) -> None:
        async with followed(stage, kind, None, access) as scene:
            policy = scene.watch.policy
            assert policy is not None
            assert policy.mode is Mode.DENY
            for verb in Verb:
                assert decide(policy, "CN=ops", verb).is_allowed
                assert not decide(policy, "CN=spark", verb).is_allowed
                assert not decide(policy, ANONYMOUS_PRINCIPAL, verb).is_allowed
            await scene.is_so(lambda: scene.watch.is_faulty)
            await scene.store(text(1))
            await scene.is_so(lambda: scene.revised == [1] * REVISIONS)
            assert not scene.watch.is_faulty
            assert scene.watch.policy is not None
            assert decide(scene.watch.policy, "CN=spark", Verb.READ, PartitionId(0)).is_allowed

    play(story)
    (line,) = [each.getMessage() for each in caplog.records if "policy_missing" in each.msg]
    assert f"there is no policy at the coordinator's node {PATH}, so all are refused" in line


UNUSABLE = {
    "a fault": (text(8).replace(b"mode: deny", b"mode: refuse"), "line 3"),
    "older": (text(6), "version 6 is below 7, which is in force"),
    "too large": (text(8) + b"#" * POLICY_BYTES_MAX, f"larger than {POLICY_BYTES_MAX} bytes"),
    "empty": (b"", "is empty"),
}


@KINDS
@pytest.mark.parametrize("name", one_in(4, UNUSABLE))
def test_what_cannot_be_a_policy_changes_nothing_and_is_told(
    play: Play, kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    content, reason = UNUSABLE[name]

    async def story(stage: Stage) -> None:
        async with followed(stage, kind, text(7)) as scene:
            before = scene.watch.policy
            assert before is not None
            await scene.store(content)
            await scene.is_so(lambda: scene.watch.is_faulty)
            assert scene.watch.policy is before
            assert scene.revised == []
            await scene.store(text(8))
            await scene.is_so(lambda: scene.version == 8)
            assert not scene.watch.is_faulty

    play(story)
    (line,) = [each.getMessage() for each in caplog.records if "policy_not_taken" in each.msg]
    assert reason in line


@KINDS
def test_a_node_that_is_gone_changes_nothing_and_is_told(
    play: Play, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stage: Stage) -> None:
        async with followed(stage, kind, text(7)) as scene:
            await answered(lambda: scene.writer.delete(PATH))
            await scene.is_so(lambda: scene.watch.is_faulty)
            assert scene.version == 7
            await scene.store(text(7))
            await scene.is_so(lambda: not scene.watch.is_faulty)
            assert scene.version == 7

    play(story)
    (line,) = [each.getMessage() for each in caplog.records if "policy_not_taken" in each.msg]
    assert f"there is no policy any more at the coordinator's node {PATH}" in line


@KINDS
def test_without_the_coordinator_the_policy_stays_and_what_is_stored_then_is_taken(
    play: Play, kind: str
) -> None:
    async def story(stage: Stage) -> None:
        async with followed(stage, kind, text(7)) as scene:
            await stage.begin_outage()
            await asyncio.sleep(0.1)
            assert scene.version == 7
            await stage.end_outage()
            await scene.store(text(8))
            await scene.is_so(lambda: scene.version == 8)

    play(story)


def test_no_process_starts_with_a_node_that_has_a_fault(play: Play) -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(ConfigurationError, match=f"node {PATH}, line 3"):
            async with followed(stage, "watched", UNUSABLE["a fault"][0]):
                pass

    play(story)


def test_of_two_that_store_at_once_one_is_told_that_nothing_was_written(play: Play) -> None:
    async def story(stage: Stage) -> None:
        async with followed(stage, "watched", None) as scene:
            writer = scene.writer
            assert await write_policy_node(writer, DEFAULT_ROOT, text(1), over=None)
            assert not await write_policy_node(writer, DEFAULT_ROOT, text(2), over=None)
            over = await read_policy_node(writer, DEFAULT_ROOT)
            assert await write_policy_node(writer, DEFAULT_ROOT, text(3), over=over)
            assert not await write_policy_node(writer, DEFAULT_ROOT, text(4), over=over)
            await writer.delete(PATH)
            assert not await write_policy_node(writer, DEFAULT_ROOT, text(5), over=over)
            assert await read_policy_node(writer, DEFAULT_ROOT) is None

    play(story)
