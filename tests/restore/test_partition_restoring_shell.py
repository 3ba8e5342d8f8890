"""A partition's restore in the coordinator of a living cluster, lost at any call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from tests.cluster.simulated import STORAGES, FailingCoordinator, World, create, simulate
from waltz.cluster.consumer_marks import KeptMark, decode_kept, encode_kept
from waltz.cluster.log_history import LogHistory, decode_histories
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState, next_session
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.removal_shell import remove_cluster
from waltz.cluster.replica_assignments import ReplicaAssignments
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.errors import (
    ConfigurationError,
    CoordinatorLostError,
    CorruptionError,
    FencedError,
    NoNodeError,
)
from waltz.host import Coordinator
from waltz.restore.directory_report import DirectoryReport, PartitionHeld
from waltz.restore.partition_restore import (
    PartitionRestore,
    is_over,
    reserved_numbers,
)
from waltz.restore.partition_restoring_shell import (
    begin_partition,
    finish_partition,
    read_partition_plan,
    report_partition,
)
from waltz.types import (
    Generation,
    PartitionId,
    ReplicaId,
    ServerId,
    SessionId,
    TransactionId,
)

ROOT = "/waltz"
PATHS = ClusterPaths(ROOT)
LOST, OTHER = PartitionId(1), PartitionId(0)
REPLICAS = tuple(sorted(ReplicaId(str(each.connect)) for each in STORAGES))
BEFORE = PartitionMetadata(
    Generation(5), SessionId(12), {each: ReplicaState(SessionId(12), None) for each in REPLICAS}
)
ASSIGNED = PartitionAssignment(
    3, 2, {ServerId(7): {OTHER: Generation(4), LOST: Generation(5)}, ServerId(8): {}}
)
RESTORE_ID = UUID(int=42)
LAST = TransactionId(99)
HELD = PartitionHeld(LAST, "a" * 64, 1000, 3, Generation(5))


def plan(**changes: object) -> PartitionRestore:
    session_id, generation = reserved_numbers(BEFORE, Generation(5))
    made = PartitionRestore(
        RESTORE_ID, "file:///a", "--latest", LOST, LAST, session_id, generation, REPLICAS,
        False, 1_700_000_000_000,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def report(replica_id: ReplicaId, held: PartitionHeld = HELD) -> DirectoryReport:
    return DirectoryReport(RESTORE_ID, replica_id, UUID(int=len(replica_id)), {LOST: held})


async def make_cluster(coordinator: Coordinator) -> None:
    await create(coordinator, name="pay")
    every = (OTHER, LOST)
    node = await coordinator.read(PATHS.replica_assignments)
    data = ReplicaAssignments(dict.fromkeys(REPLICAS, every)).encode()
    await coordinator.write(PATHS.replica_assignments, data, version=node.version)
    node = await coordinator.read(PATHS.server_descriptors)
    await coordinator.write(PATHS.server_descriptors, ASSIGNED.encode(), version=node.version)
    for each in every:
        await coordinator.create(PATHS.partition_metadata(each), BEFORE.encode(each))
    await coordinator.create(PATHS.consumers, None)
    marks = {p: KeptMark(TransactionId(150), 1000) for p in every}
    await coordinator.create(PATHS.consumer("orders"), encode_kept(marks))


async def restore(coordinator: Coordinator, wanted: PartitionRestore) -> tuple[str, ...]:
    begun = await begin_partition(coordinator, wanted, root=ROOT)
    for each in REPLICAS:
        await report_partition(coordinator, begun, report(each), root=ROOT)
    return await finish_partition(coordinator, begun, 2, lambda count: None, root=ROOT)


async def metadata(coordinator: Coordinator, partition_id: PartitionId) -> PartitionMetadata:
    node = await coordinator.read(PATHS.partition_metadata(partition_id))
    return PartitionMetadata.decode(node.data or b"", partition_id)


def test_no_server_opens_the_partition_from_the_beginning_of_a_restore_to_its_end() -> None:
    async def story(world: World) -> None:
        async def main(coordinator: Coordinator) -> None:
            await make_cluster(coordinator)
            before = await coordinator.read(PATHS.server_descriptors)
            begun = await begin_partition(coordinator, plan(), root=ROOT)
            found = await metadata(coordinator, LOST)
            assert found == replace(BEFORE, generation=Generation(1005))
            for generation in (5, 6, 1004):
                with pytest.raises(FencedError):
                    next_session(found, Generation(generation))
            assert await coordinator.read(PATHS.server_descriptors) == before
            for each in REPLICAS:
                await report_partition(coordinator, begun, report(each), root=ROOT)
            changes = await finish_partition(coordinator, begun, 2, lambda count: None, root=ROOT)
            assert changes == (
                "consumer orders: its mark 150 of partition 1 is beyond the point, and dropped",
            )
            found = await metadata(coordinator, LOST)
            assert found == PartitionMetadata(
                Generation(1005), SessionId(1_000_012),
                {each: ReplicaState(SessionId(1_000_012), None) for each in REPLICAS},
            )  # fmt: skip
            assert next_session(found, Generation(1005)).session_id == 1_000_013
            assert await metadata(coordinator, OTHER) == BEFORE
            node = await coordinator.read(PATHS.server_descriptors)
            assert PartitionAssignment.decode(node.data or b"") == replace(
                ASSIGNED,
                servers={
                    ServerId(7): {OTHER: Generation(4), LOST: Generation(1005)}, ServerId(8): {}
                },
            )  # fmt: skip
            node = await coordinator.read(PATHS.consumer("orders"))
            assert decode_kept(node.data or b"") == {OTHER: KeptMark(TransactionId(150), 1000)}
            (history,) = decode_histories((await coordinator.read(PATHS.history)).data or b"")
            assert history == LogHistory(RESTORE_ID, 1_700_000_000_000, {LOST: TransactionId(100)})
            with pytest.raises(NoNodeError):
                await read_partition_plan(coordinator, LOST, root=ROOT)
            await remove_cluster(coordinator, name="pay", root=ROOT)

        await world.ask(main)

    simulate(story)


def test_a_restore_that_loses_the_coordinator_at_any_call_is_resumed_by_the_same_calls() -> None:
    async def story(world: World) -> None:
        async def main(coordinator: Coordinator) -> None:
            kept: list[Mapping[str, bytes | None]] = []
            number, ended = 0, False
            while not ended:
                number += 1
                ended = True
                for takes_effect in (True, False):
                    await make_cluster(coordinator)
                    failing = FailingCoordinator(coordinator, number, takes_effect=takes_effect)
                    try:
                        await restore(failing, plan())
                    except CoordinatorLostError:
                        ended = False
                        found = await metadata(coordinator, LOST)
                        if not is_over(found, plan()):
                            assert found.replica_states == BEFORE.replica_states
                        try:
                            begun = await read_partition_plan(coordinator, LOST, root=ROOT)
                        except NoNodeError:
                            begun = plan()
                        if number < 4 or not is_over(found, plan()):
                            await restore(coordinator, begun)
                        else:
                            await resume(coordinator, begun)
                    found_nodes = world.nodes(ROOT)
                    kept.append(
                        {p: n.data for p, n in found_nodes.items() if not p.endswith("adminLock")}
                    )
                    await remove_cluster(coordinator, name="pay", root=ROOT)
            assert number > 25
            assert all(each == kept[0] for each in kept), "however it was interrupted"

        await world.ask(main)

    simulate(story)


async def resume(coordinator: Coordinator, begun: PartitionRestore) -> None:
    """As the command does, which knows only what the coordinator says."""
    try:
        await read_partition_plan(coordinator, LOST, root=ROOT)
    except NoNodeError:
        return  # it had ended
    again = await begin_partition(coordinator, begun, root=ROOT)
    await finish_partition(coordinator, again, 2, lambda count: None, root=ROOT)


def test_another_restore_of_the_partition_is_refused_and_leave_may_be_given_later() -> None:
    async def story(world: World) -> None:
        async def main(coordinator: Coordinator) -> None:
            await make_cluster(coordinator)
            await begin_partition(coordinator, plan(), root=ROOT)
            other = plan(last=TransactionId(50), point="--marks 1=50")
            with pytest.raises(ConfigurationError, match="its last transaction is 99, not 50"):
                await begin_partition(coordinator, other, root=ROOT)
            again = await begin_partition(
                coordinator, plan(restore_id=UUID(int=5), abandons_suffix=True), root=ROOT
            )
            assert again == plan(abandons_suffix=True)
            assert await read_partition_plan(coordinator, LOST, root=ROOT) == again
            assert await begin_partition(coordinator, plan(), root=ROOT) == again, "not taken back"

        await world.ask(main)

    simulate(story)


def test_directories_that_differ_and_replicas_that_have_changed_end_nothing() -> None:
    async def story(world: World) -> None:
        async def main(coordinator: Coordinator) -> None:
            await make_cluster(coordinator)
            begun = await begin_partition(coordinator, plan(), root=ROOT)
            for each, digest in zip(REPLICAS, "aab", strict=True):
                found = report(each, HELD._replace(sha256=digest * 64))
                await report_partition(coordinator, begun, found, root=ROOT)
            with pytest.raises(CorruptionError, match="differs between the restored directories"):
                await finish_partition(coordinator, begun, 2, lambda count: None, root=ROOT)
            await report_partition(coordinator, begun, report(REPLICAS[2]), root=ROOT)
            node = await coordinator.read(PATHS.replica_assignments)
            fewer = ReplicaAssignments(dict.fromkeys(REPLICAS[:2], (OTHER, LOST))).encode()
            await coordinator.write(PATHS.replica_assignments, fewer, version=node.version)
            with pytest.raises(ConfigurationError, match="is now held by"):
                await finish_partition(coordinator, begun, 2, lambda count: None, root=ROOT)
            assert (await metadata(coordinator, LOST)).session_id == BEFORE.session_id

        await world.ask(main)

    simulate(story)


def test_a_server_that_opens_a_session_while_the_restore_begins_is_fenced_after_it() -> None:
    async def story(world: World) -> None:
        async def main(coordinator: Coordinator) -> None:
            await make_cluster(coordinator)
            wanted = plan()
            path = PATHS.partition_metadata(LOST)
            node = await coordinator.read(path)
            opened = next_session(BEFORE, Generation(5))
            await coordinator.write(path, opened.encode(LOST), version=node.version)
            await begin_partition(coordinator, wanted, root=ROOT)
            found = await metadata(coordinator, LOST)
            assert (found.generation, found.session_id) == (1005, 13)
            await restore(coordinator, wanted)
            assert (await metadata(coordinator, LOST)).session_id == 1_000_012

        await world.ask(main)

    simulate(story)
