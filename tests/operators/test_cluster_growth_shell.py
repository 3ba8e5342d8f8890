"""Partitions are added to a cluster of simulated machines: who is asked, who is refused, and what a
step that fails leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest

from tests.client.applications import Recorder
from waltz.cli.cluster_growth import carry_out
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.cluster_shell import read_replica_assignments
from waltz.cluster.growing_shell import begin_growth, read_counts
from waltz.cluster.partition_growth import PartitionCounts
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.cluster.placement_shell import change_placement
from waltz.cluster.storage_placement import unassign_replicas
from waltz.errors import ConfigurationError, CoordinatorLostError, UnavailableError
from waltz.host import Coordinator, Host
from waltz.operators.cluster_growth_shell import (
    GrowthPlan,
    add_partitions,
    ask_growth,
    plan_growth,
    wait_until_served,
)
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import PORT, SimulatedCluster, replica_id_of
from waltz.sim.sites import Sites
from waltz.storage import storage_ports_shell
from waltz.types import Address, PartitionId
from waltz.wire.admin_protocol import ADMIN_CODEC

T = TypeVar("T")

SHAPE = ClusterShape(
    partition_count=2, storage_count=3, server_count=2, segment_bytes_threshold=20_000
)


class Scene:
    """A cluster that runs, and operators who come to it."""

    def __init__(self, seed: int, versions: dict[str, int]) -> None:
        self.loop = SimulatedLoop(seed)
        self.sites = Sites(self.loop, seed, RunTrace())
        self.cluster = SimulatedCluster(
            self.sites, SHAPE, UUID(int=1), lambda name: versions.get(name, 5)
        )
        self._operators = 0

    async def ask(self, act: Callable[[Host], Coroutine[Any, Any, T]]) -> T:
        async def main(host: Host) -> T:
            try:
                return await act(host)
            finally:
                await host.coordinator.close()

        self._operators += 1
        return await self.sites.run(f"operator-{self._operators}", main)

    async def settled(self) -> None:
        await self.ask(lambda host: wait_until_served(host, [PartitionId(0), PartitionId(1)], 60))

    async def counts(self) -> PartitionCounts:
        return await self.ask(lambda host: read_counts(host.coordinator))

    def kill(self, name: str) -> None:
        self.sites.kill(self.sites.site(name))

    def boot(self, name: str) -> None:
        self.sites.site(name).disk.release_locks()
        self.sites.boot(self.sites.site(name))


def play(
    story: Callable[[Scene], Coroutine[Any, Any, None]],
    *,
    seeds: int = 1,
    versions: dict[str, int] | None = None,
) -> None:
    for seed in range(seeds):
        scene = Scene(seed, versions or {})

        async def course(scene: Scene = scene) -> None:
            await scene.cluster.start()
            await scene.settled()
            await story(scene)

        try:
            scene.loop.run_until_complete(scene.sites.unless_broken(course()))
            assert scene.loop.failures() == []
        finally:
            scene.loop.shut_down()


async def grow(host: Host, to: int = 5) -> list[PartitionId]:
    plan = await plan_growth(host, to)
    assert await add_partitions(host, plan)
    return await wait_until_served(host, plan.new, 60)


def test_a_cluster_grows_while_clients_write() -> None:
    """F-35: what is appended stays, a client that runs follows from the first transaction on."""

    async def story(scene: Scene) -> None:
        recorder = Recorder()

        async def work(host: Host) -> None:
            async with AsyncWaltzClient(host, recorder, ClientOptions()) as client:
                await client.append(0, b"before")
                growing = asyncio.create_task(scene.ask(grow))
                while not growing.done():
                    await client.append(1, b"meanwhile")
                assert growing.result() == []
                while client.partition_count < 5:
                    await asyncio.sleep(0.1)
                assert await client.get_high_water_mark(4) == -1
                assert await client.append(4, b"new") == 0
                while recorder.applied_in(4) != [0]:
                    await asyncio.sleep(0.1)

        await scene.ask(work)
        assert await scene.counts() == PartitionCounts(5, 5, 5)
        placed = await scene.ask(lambda host: read_replica_assignments(host.coordinator))
        assert set(placed.values()) == {(0, 1, 2, 3, 4)}

    play(story, seeds=5)


def test_the_same_number_again_changes_nothing() -> None:
    async def story(scene: Scene) -> None:
        await scene.ask(grow)
        tree = scene.sites.coordinator.tree
        before = {path: tree.read(path).version for path in ("/waltz", "/waltz/store")}
        plan = await scene.ask(lambda host: plan_growth(host, 5))
        assert (list(plan.new), plan.taken, plan.before) == ([], {}, plan.after)
        assert await scene.ask(grow) == []
        assert {path: tree.read(path).version for path in before} == before
        with pytest.raises(ConfigurationError, match="never gets smaller"):
            await scene.ask(lambda host: plan_growth(host, 4))

    play(story)


def test_a_storage_node_that_does_not_answer_is_an_obstacle() -> None:
    async def story(scene: Scene) -> None:
        scene.kill("storage-1")
        plan = await scene.ask(lambda host: plan_growth(host, 5))
        (obstacle,) = plan.obstacles
        assert "storage node storage-1:7000 cannot be asked whether it follows" in obstacle
        with pytest.raises(ConfigurationError, match="storage-1:7000 cannot be asked"):
            await scene.ask(lambda host: add_partitions(host, plan))
        assert await scene.counts() == PartitionCounts(2, 2, 2)
        scene.boot("storage-1")
        assert await scene.ask(grow) == []

    play(story)


def test_an_old_storage_node_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the Java original speaks version 0, one of ours from before version 1."""
    for version in (0, 1):
        monkeypatch.setattr(storage_ports_shell, "ADMIN_CODEC", ADMIN_CODEC.up_to(version))

        async def story(scene: Scene) -> None:
            plan = await scene.ask(lambda host: plan_growth(host, 5))
            assert len(plan.obstacles) == 3
            for obstacle in plan.obstacles:
                assert "is the Java original's or of an earlier release" in obstacle
                assert "replace it by one of this release" in obstacle

        play(story)


def test_an_old_server_is_an_obstacle() -> None:
    async def story(scene: Scene) -> None:
        plan = await scene.ask(lambda host: plan_growth(host, 5))
        (obstacle,) = plan.obstacles
        assert "server server-1:7000 is the Java original's or of an earlier release" in obstacle

    play(story, versions={"server-1": 4})


def test_a_server_that_does_not_answer_is_told_apart_from_an_old_one() -> None:
    async def story(scene: Scene) -> None:
        report = await scene.ask(lambda host: ask_growth(host, Address("server-0", PORT)))
        assert report is not None
        assert (report.partition_count, report.earlier_clients) == (2, 0)
        with pytest.raises(UnavailableError):
            await scene.ask(lambda host: ask_growth(host, Address("server-0", 1)))

    play(story)


def test_clients_of_earlier_versions_are_an_obstacle_unless_they_are_accepted() -> None:
    """Only those that have mounted something: tools ask in an earlier version, too."""

    async def story(scene: Scene) -> None:
        async def work(host: Host) -> None:
            options = ClientOptions(protocol_version_max=4)
            async with AsyncWaltzClient(host, NoCallbacks(), options) as client:
                await client.append(0, b"")
                await client.append(1, b"")
                plan = await scene.ask(lambda host: plan_growth(host, 5))
                assert plan.obstacles
                assert "1 clients of server" in plan.obstacles[0]
                assert "End them first" in plan.obstacles[0]

                async def despite(host: Host) -> None:
                    plan = await plan_growth(host, 5, despite_earlier_clients=True)
                    assert await add_partitions(host, plan)

                await scene.ask(despite)
                while client.partition_count < 5:
                    await asyncio.sleep(0.1)

        await scene.ask(work)

    play(story)


def test_a_node_that_fails_on_the_way_leaves_everything_as_it_is_served() -> None:
    """The store parameters are ahead; the node comes back with room, and the rest is finished."""

    async def story(scene: Scene) -> None:
        plans: list[GrowthPlan] = [await scene.ask(lambda host: plan_growth(host, 5))]
        scene.kill("storage-2")
        with pytest.raises(UnavailableError, match="storage-2"):
            await scene.ask(lambda host: add_partitions(host, plans[0]))
        counts = await scene.counts()
        assert (counts, counts.is_half_added) == (PartitionCounts(2, 5, 2), True)

        async def work(host: Host) -> None:
            async with AsyncWaltzClient(host, NoCallbacks()) as client:
                await client.append(0, b"goes on")

        await scene.ask(work)
        scene.boot("storage-2")
        with pytest.raises(ConfigurationError, match="finish it first, with --to 5"):
            await scene.ask(lambda host: plan_growth(host, 6))
        while (await scene.ask(lambda host: plan_growth(host, 5))).obstacles:
            await asyncio.sleep(0.5)
        assert await scene.ask(grow) == []
        assert await scene.counts() == PartitionCounts(5, 5, 5)

    play(story)


class LostLater:
    """A coordinator that is lost with the `last` call of a name on a path: it has taken it, and
    does not answer any more."""

    def __init__(self, inner: Coordinator, last: tuple[str, str], count: int = 1) -> None:
        self._inner = inner
        self._last = last
        self._left = count

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name == "close":
            return found

        async def call(path: str, *arguments: Any, **more: Any) -> Any:
            if not self._left:
                raise CoordinatorLostError("the coordinator does not answer")
            answer = await found(path, *arguments, **more)
            self._left -= (name, path) == self._last
            if not self._left:
                raise CoordinatorLostError("the coordinator does not answer")
            return answer

        return call


@pytest.mark.parametrize(
    ("last", "counts"),
    [
        (("write", "/waltz"), PartitionCounts(5, 5, 2)),
        (("write", "/waltz/serverDescriptors"), PartitionCounts(5, 5, 5)),
    ],
)
def test_a_coordinator_that_is_lost_leaves_open_how_far_an_addition_has_come(
    last: tuple[str, str], counts: PartitionCounts
) -> None:
    """Its last write took effect, so it would be false that nothing has changed."""

    async def story(scene: Scene) -> None:
        async def work(host: Host) -> None:
            plan = await plan_growth(host, 5)
            coordinator = cast(Coordinator, LostLater(host.coordinator, last))
            await carry_out(replace(host, coordinator=coordinator), DEFAULT_ROOT, plan, 60)

        unknown = "how far the addition has come is not known"
        with pytest.raises(ConfigurationError, match=unknown) as caught:
            await scene.ask(work)
        assert "have not changed" not in str(caught.value)
        assert await scene.counts() == counts
        assert await scene.ask(grow) == []

    play(story)


def test_a_coordinator_that_is_lost_while_servers_are_asked_leaves_the_partitions() -> None:
    async def story(scene: Scene) -> None:
        async def work(host: Host) -> None:
            plan = await plan_growth(host, 5)
            await add_partitions(host, plan)
            lost = cast(
                Coordinator,
                LostLater(host.coordinator, ("children", "/waltz/serverDescriptors"), 3),
            )
            await carry_out(replace(host, coordinator=lost), DEFAULT_ROOT, plan, 60)

        with pytest.raises(ConfigurationError, match="the cluster has 5 partitions, and whether"):
            await scene.ask(work)
        assert await scene.counts() == PartitionCounts(5, 5, 5)

    play(story)


def test_what_is_assigned_meanwhile_is_dealt_out_again() -> None:
    """Another operator takes an old partition from a node between the plan and the steps."""

    async def story(scene: Scene) -> None:
        plan = await scene.ask(lambda host: plan_growth(host, 5))
        node = replica_id_of("storage-0")

        async def other(host: Host) -> None:
            await change_placement(
                host.coordinator,
                lambda placement: unassign_replicas(
                    placement, node, [PartitionId(0), PartitionId(1)], shrinks_group=True
                ),
            )

        await scene.ask(other)
        assert await scene.ask(lambda host: add_partitions(host, plan))
        placed = await scene.ask(lambda host: read_replica_assignments(host.coordinator))
        assert placed[node] == (), "its group holds nothing any more"
        assert await scene.ask(grow) == []

    play(story)


def test_a_server_that_has_not_noticed_says_what_it_serves() -> None:
    async def story(scene: Scene) -> None:
        await scene.ask(lambda host: begin_growth(host.coordinator, 5))
        report = await scene.ask(lambda host: ask_growth(host, Address("server-0", PORT)))
        assert report is not None
        assert report.partition_count == 2

        async def work(host: Host) -> None:
            async with AsyncWaltzClient(host, NoCallbacks()) as client:
                assert client.partition_count == 2
                await client.append(1, b"")

        await scene.ask(work)
        scene.kill("server-0")
        scene.boot("server-0")
        await asyncio.sleep(5)
        await scene.ask(work)

    play(story)


def test_all_at_once_by_two_operators() -> None:
    async def story(scene: Scene) -> None:
        both = await asyncio.gather(scene.ask(grow), scene.ask(grow), return_exceptions=True)
        assert any(each == [] for each in both), both
        assert await scene.ask(grow) == []
        assert await scene.counts() == PartitionCounts(5, 5, 5)

    play(story, seeds=5)
