"""All nodes of a cluster, as the coordinator has them."""

from __future__ import annotations

import pytest

from tests.cluster.simulated import World, create, simulate
from waltz.cluster import snapshot_shell
from waltz.cluster.snapshot_shell import read_nodes
from waltz.errors import CoordinationError, NoNodeError


def test_every_node_is_copied_with_its_content() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        found = await world.ask(read_nodes)
        nodes = world.nodes("/waltz")
        assert found == {
            path.removeprefix("/waltz"): node.data or b"" for path, node in nodes.items()
        }
        assert "" in found
        assert "/store/assignment" in found

    simulate(story)


def test_without_a_cluster_there_is_nothing_to_copy() -> None:
    async def story(world: World) -> None:
        with pytest.raises(NoNodeError):
            await world.ask(read_nodes)

    simulate(story)


def test_a_tree_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        monkeypatch.setattr(snapshot_shell, "SNAPSHOT_BYTES_MAX", 100)
        with pytest.raises(CoordinationError, match="they are not copied"):
            await world.ask(read_nodes)

    simulate(story)
