"""Writing a restored cluster into a coordinator, which may be lost at any call."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.cluster.simulated import FailingCoordinator, World, create, simulate
from tests.restore.memory_archive import OLD_DIRECTORY, STORAGES, make_archive
from tests.restore.test_restore_plan import plan
from tests.restore.test_restored_nodes import reports_of
from waltz.cluster.cluster_shell import (
    allocate_client_id,
    allocate_server_id,
    read_store_params,
    register_storage_directory,
)
from waltz.cluster.removal_shell import remove_cluster
from waltz.errors import (
    ConfigurationError,
    CoordinatorLostError,
    ForeignDirectoryError,
    NodeExistsError,
    NoNodeError,
)
from waltz.host import Coordinator
from waltz.restore.archived_cluster import archived_cluster
from waltz.restore.restored_nodes import restored_nodes
from waltz.restore.restoring_shell import (
    all_reports,
    begin_restore,
    is_restored,
    read_plan,
    read_reports,
    report_directory,
    write_cluster,
)
from waltz.types import ReplicaId

ROOT = "/waltz"
ARCHIVE = make_archive([10, 3])


async def restore(coordinator: Coordinator, *, same_key: bool = False) -> None:
    wanted = plan(ARCHIVE, same_key=same_key)
    begun = await begin_restore(coordinator, wanted, root=ROOT)
    for report in reports_of(begun).values():
        await report_directory(coordinator, report, root=ROOT)
    reports = await all_reports(coordinator, begun, lambda count: None, root=ROOT)
    made = restored_nodes(begun, archived_cluster(ARCHIVE), reports, root=ROOT)
    await write_cluster(coordinator, made, root=ROOT)


def test_the_cluster_exists_once_everything_is_written() -> None:
    async def story(world: World) -> None:
        await world.ask(restore)
        assert (await world.ask(read_store_params)).cluster_key == plan(ARCHIVE).cluster_key
        assert await world.ask(allocate_client_id) == 1_000_042
        assert await world.ask(allocate_server_id) == 1_000_008

        async def again(coordinator: Coordinator) -> None:
            with pytest.raises(NodeExistsError, match="is finished: the cluster is at /waltz"):
                await restore(coordinator)
            with pytest.raises(NodeExistsError, match="there is a cluster at /waltz"):
                await create(coordinator, name="payments")

        await world.ask(again)
        await world.ask(remove_cluster, name="payments")
        assert list(world.tree.children("/")) == []

    simulate(story)


def test_a_restore_that_loses_the_coordinator_at_any_call_is_resumed_by_the_same_calls() -> None:
    async def story(world: World) -> None:
        async def main(coordinator: Coordinator) -> None:
            number = 0
            ended = False
            while not ended:
                number += 1
                ended = True
                for before in (True, False):
                    failing = FailingCoordinator(coordinator, number, takes_effect=not before)
                    try:
                        await restore(failing, same_key=True)
                    except CoordinatorLostError:
                        ended = False
                        if not await is_restored(coordinator, root=ROOT):
                            with pytest.raises(NoNodeError):
                                await read_store_params(coordinator, ROOT)
                            await restore(coordinator, same_key=True)
                    assert await is_restored(coordinator, root=ROOT)
                    found = world.nodes(ROOT)
                    # A call that was lost may have left the lock to its session.
                    kept.append(
                        {p: node.data for p, node in found.items() if not p.endswith("/adminLock")}
                    )
                    await remove_cluster(coordinator, name="payments", root=ROOT)
            assert number > 20

        kept: list[dict[str, bytes | None]] = []
        await world.ask(main)
        assert all(each == kept[0] for each in kept), "however it was interrupted"

    simulate(story)


def test_while_a_restore_is_not_finished_no_cluster_is_created_and_no_process_starts() -> None:
    async def story(world: World) -> None:
        async def main(coordinator: Coordinator) -> None:
            begun = await begin_restore(coordinator, plan(ARCHIVE), root=ROOT)
            assert await read_plan(coordinator, root=ROOT) == begun
            with pytest.raises(NodeExistsError, match="a restore was begun at /waltz"):
                await create(coordinator, name="payments")
            with pytest.raises(NoNodeError):
                await read_store_params(coordinator, ROOT)
            assert await read_reports(coordinator, root=ROOT) == {}

        await world.ask(main)

    simulate(story)


def test_another_restore_at_the_same_place_is_refused() -> None:
    async def story(world: World) -> None:
        async def main(coordinator: Coordinator) -> None:
            begun = await begin_restore(coordinator, plan(ARCHIVE), root=ROOT)
            with pytest.raises(ConfigurationError, match="its key is a new one"):
                await begin_restore(coordinator, plan(ARCHIVE, same_key=True), root=ROOT)
            later = plan(ARCHIVE, restore_id=UUID(int=77))
            assert await begin_restore(coordinator, later, root=ROOT) == begun
            report = reports_of(begun)[STORAGES[0]]
            other = replace(report, restore_id=UUID(int=77))
            with pytest.raises(ConfigurationError, match="fill the directory again"):
                await report_directory(coordinator, other, root=ROOT)
            await remove_cluster(coordinator, name="payments", root=ROOT)
            assert (await begin_restore(coordinator, later, root=ROOT)).restore_id == UUID(int=77)

        await world.ask(main)

    simulate(story)


def test_an_existing_cluster_is_never_restored_over() -> None:
    async def story(world: World) -> None:
        await world.ask(create, name="payments")
        before = world.nodes(ROOT)

        async def main(coordinator: Coordinator) -> None:
            with pytest.raises(NodeExistsError, match="there is a cluster at /waltz"):
                await restore(coordinator)

        await world.ask(main)
        assert world.nodes(ROOT) == before

    simulate(story)


def test_a_directory_of_the_time_before_is_refused_under_the_same_key() -> None:
    async def story(world: World) -> None:
        async def main(coordinator: Coordinator) -> None:
            await restore(coordinator, same_key=True)
            for replica_id in (STORAGES[0], ReplicaId("other:1")):
                with pytest.raises(ForeignDirectoryError, match="before the log was restored"):
                    await register_storage_directory(
                        coordinator, replica_id, OLD_DIRECTORY, root=ROOT
                    )
            await register_storage_directory(coordinator, STORAGES[0], UUID(int=1), root=ROOT)

        await world.ask(main)

    simulate(story)
