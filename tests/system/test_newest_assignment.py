"""The newest assignment, read from all three coordinators."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.system.coordinators import (
    Play,
    Stage,
    play_embedded,
    play_simulated,
    play_zookeeper,
)
from tests.zookeepers import RunningZooKeeper
from waltz.cluster.newest_assignment_shell import read_newest_assignment
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.errors import NoNodeError
from waltz.types import Generation, PartitionId, ServerId


def check(play: Play) -> None:
    async def story(stage: Stage) -> None:
        door, other = stage.host().coordinator, stage.host().coordinator
        with pytest.raises(NoNodeError):
            await read_newest_assignment(door, "/a", written=b"1")
        await door.create("/a", None)
        await door.create("/a/serverDescriptors", PartitionAssignment(0, 0, {}).encode())
        for number in range(1, 4):
            seen = await door.read("/a/serverDescriptors")
            servers = {ServerId(number): {PartitionId(0): Generation(number)}}
            wanted = PartitionAssignment(number, 1, servers)
            await other.write("/a/serverDescriptors", wanted.encode(), version=seen.version)
            assert await read_newest_assignment(door, "/a", written=b"%d" % number) == wanted
            assert (await door.read("/a/serverDescriptors")).version == number
        assert (await other.read("/a/cut")).data == b"3"

    play(story)


def test_of_the_embedded_one_it_is_read_after_a_write_of_another_node(tmp_path: Path) -> None:
    """So that a cut wakes nobody who follows the assignment."""
    check(functools.partial(play_embedded, tmp_path / "coordinator.json"))


def test_of_the_simulated_one_it_is_read_after_a_write_of_another_node() -> None:
    check(play_simulated)


@pytest.mark.processes
def test_of_a_zookeeper_it_is_read_after_a_write_of_another_node(
    zookeeper: RunningZooKeeper,
) -> None:
    check(functools.partial(play_zookeeper, zookeeper, "/newest-assignment"))
