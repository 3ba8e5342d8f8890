"""The policy in force, read from a real disk: at the start, after changes, and after faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.client.fake_cluster import until
from waltz.access.auditing import Auditing
from waltz.access.policy import Mode, Policy, Verb, decide
from waltz.access.policy_standing import PolicyStanding
from waltz.access.policy_watch_shell import (
    POLICY_LOOK_SECONDS,
    REVISIONS,
    AccessConfig,
    PolicyWatch,
    Revisions,
)
from waltz.access.principals import parse_pattern
from waltz.access.told_denials_shell import ToldDenials
from waltz.audit.audit_shell import Audit
from waltz.errors import ConfigurationError
from waltz.system.real_host import real_host

POLICY = """
version: 7
mode: deny
default: deny
roles: {reader: {verbs: [read], partitions: all}}
grants: {"CN=spark": [reader]}
"""

OWN = (parse_pattern("CN=ops-*"),)

Scene = Callable[[PolicyWatch, Path, list[int]], Awaitable[None]]


def play(directory: Path, scene: Scene, policy: str = POLICY) -> None:
    """Play `scene` with a watch that has started, and the versions by which it revised."""
    path, revised = directory / "policy.yaml", list[int]()
    path.write_text(policy)

    async def revise(policy: Policy) -> None:
        revised.append(policy.version)

    async def main() -> None:
        watch = PolicyWatch(
            real_host(None), AccessConfig(policy_path=str(path), break_glass=OWN), revise
        )
        await watch.start()
        try:
            await scene(watch, path, revised)
        finally:
            await watch.stop()
            await watch.stop()

    asyncio.run(asyncio.wait_for(main(), 240.0))


def test_another_policy_is_in_force_and_revised_by_a_bounded_number_of_times(
    tmp_path: Path,
) -> None:
    async def scene(watch: PolicyWatch, path: Path, revised: list[int]) -> None:
        assert watch.policy is not None
        assert (watch.policy.version, watch.policy.mode) == (7, Mode.DENY)
        path.write_text(POLICY.replace("version: 7", "version: 8"))
        await until(lambda: len(revised) == REVISIONS)
        path.write_text(POLICY.replace("version: 7", "version: 9"))
        await until(lambda: len(revised) == 2 * REVISIONS)
        assert revised == [8] * REVISIONS + [9] * REVISIONS

    play(tmp_path, scene)


def test_a_fault_leaves_the_policy_that_was_read_before_and_revises_nothing(
    tmp_path: Path,
) -> None:
    async def scene(watch: PolicyWatch, path: Path, revised: list[int]) -> None:
        before = watch.policy
        path.write_text(POLICY.replace("mode: deny", "mode: refuse"))
        await until(lambda: watch.is_faulty)
        assert watch.policy is before
        assert revised == []
        path.write_text(POLICY.replace("version: 7", "version: 8"))
        await until(lambda: not watch.is_faulty)
        assert watch.policy is not None
        assert watch.policy.version == 8

    play(tmp_path, scene)


def test_no_file_takes_everything_from_those_whom_the_process_itself_names(tmp_path: Path) -> None:
    async def scene(watch: PolicyWatch, path: Path, revised: list[int]) -> None:
        def verbs(principal: str) -> set[Verb]:
            assert watch.policy is not None
            return {each for each in Verb if decide(watch.policy, principal, each).is_allowed}

        assert verbs("CN=ops-1") == set(Verb)
        assert verbs("CN=spark") == {Verb.READ, Verb.CONNECT}
        taken = 'grants: {"CN=ops-1": [reader]}\nbreak_glass: ["CN=other"]'
        path.write_text(POLICY.replace('grants: {"CN=spark": [reader]}', taken).replace("7", "8"))
        await until(lambda: bool(revised))
        assert verbs("CN=ops-1") == verbs("CN=other") == set(Verb)
        assert verbs("CN=spark") == set()

    play(tmp_path, scene)


def test_a_file_with_a_fault_is_no_policy_to_start_with(tmp_path: Path) -> None:
    async def scene(*_: object) -> None: ...

    with pytest.raises(ConfigurationError, match="line 3"):
        play(tmp_path, scene, POLICY.replace("mode: deny", "mode: refuse"))


def test_without_a_file_there_is_no_policy() -> None:
    async def main() -> None:
        watch = PolicyWatch(real_host(None), AccessConfig())
        await watch.start()
        assert watch.policy is None
        assert not watch.is_faulty
        await watch.stop()

    asyncio.run(main())


class Keeper:
    """A stored policy that says at once that it has changed."""

    place = "the keeper"

    def __init__(self, version: int) -> None:
        self.version = version
        self._news = asyncio.Event()

    def store(self, version: int) -> None:
        self.version = version
        self._news.set()

    async def read(self) -> bytes | None:
        return POLICY.replace("version: 7", f"version: {self.version}").encode()

    async def changed(self) -> None:
        await self._news.wait()
        self._news.clear()


def test_a_stored_policy_is_taken_though_the_one_before_is_not_yet_revised_by_again() -> None:
    revised: list[int] = []

    async def main() -> None:
        keeper = Keeper(7)

        async def revise(policy: Policy) -> None:
            revised.append(policy.version)
            if policy.version < 10:
                keeper.store(policy.version + 1)

        access = AccessConfig(follows_coordinator=True)
        watch = PolicyWatch(real_host(None), access, revise, stored=keeper)
        await watch.start()
        try:
            keeper.store(8)
            await until(lambda: len(revised) == 2 + REVISIONS)
        finally:
            await watch.stop()

    asyncio.run(asyncio.wait_for(main(), 240.0))
    assert revised == [8, 9] + [10] * REVISIONS


def test_a_fault_where_there_was_no_policy_is_not_told_as_a_policy_in_force(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every request is served then: the log must not say that a policy stays in force."""

    class Empty(Keeper):
        async def read(self) -> bytes | None:
            return b"version: nine" if self.version else None

    async def main() -> None:
        keeper = Empty(0)
        watch = PolicyWatch(real_host(None), AccessConfig(follows_coordinator=True), stored=keeper)
        await watch.start()
        try:
            keeper.store(9)
            await until(lambda: watch.is_faulty)
            assert watch.policy is None
            denials = ToldDenials(watch, Auditing(Audit(real_host(None), None, "a test")))
            assert denials.standing() == PolicyStanding(None, False, True)
        finally:
            await watch.stop()

    asyncio.run(asyncio.wait_for(main(), 240.0))
    (told,) = [each for each in caplog.messages if each.startswith("policy_not_taken")]
    assert told.endswith("; no policy is in force, so no request is refused for who asks")


def test_revisions_come_at_once_and_then_by_the_interval() -> None:
    now = 5.0
    revisions = Revisions(lambda: now)
    assert revisions.seconds_left() is None
    revisions.begin()
    found = []
    for _ in range(2 * REVISIONS):
        left = revisions.seconds_left()
        if left is None:
            break
        now += left + 0.25
        found.append(now)
        revisions.done()
    first = 5.25
    assert found == [first + number * (POLICY_LOOK_SECONDS + 0.25) for number in range(REVISIONS)]
    revisions.begin()
    assert revisions.seconds_left() == 0.0
