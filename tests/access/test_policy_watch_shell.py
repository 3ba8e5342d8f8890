"""The policy in force, read from a real disk: at the start, after changes, and after faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.client.fake_cluster import until
from waltz.access.policy import Mode, Policy, Verb, decide
from waltz.access.policy_watch_shell import REVISIONS, AccessConfig, PolicyWatch
from waltz.access.principals import parse_pattern
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
