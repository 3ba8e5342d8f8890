"""A storage node that runs while its cluster gets more partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from tests.storage.simulated_node import (
    ADMIN,
    DATA,
    NOBODY,
    P0,
    PeerOfNode,
    World,
    append,
    run_node,
)
from tests.storage.support import KEY, OTHER_KEY, fresh_disk, open_control, random
from waltz.errors import CoordinatorLostError
from waltz.limits import GROWTH_LOOK_SECONDS
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk, fail_nth
from waltz.types import PartitionId
from waltz.wire.admin_protocol import (
    ADMIN_CODEC,
    AdminOpenRequest,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    PartitionAssignmentRequest,
    PartitionCountRequest,
    PartitionCountResponse,
)
from waltz.wire.handshake import Link
from waltz.wire.storage_protocol import STORAGE_CODEC, OpenRequest

FOUR = PartitionId(4)


@dataclass
class Asked:
    """What the coordinator says, and when it was asked."""

    count: int = 2
    error: Exception | None = None
    seconds: float = 0.0
    times: list[float] = field(default_factory=list)

    async def read(self) -> int:
        loop = asyncio.get_running_loop()
        self.times.append(loop.time())
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return self.count


def run(
    test: Callable[[World, Asked], Awaitable[None]], disk: SimulatedDisk | None = None
) -> SimulatedDisk:
    disk, asked = disk or fresh_disk(), Asked()
    run_node(lambda world: test(world, asked), disk, read_partition_count=asked.read)
    return disk


async def knock(world: World, count: int, *, admin: bool = False, key: object = KEY) -> str | None:
    """Open a connection with that number of partitions; return the refusal."""
    address, link = (ADMIN, Link(ADMIN_CODEC, "t")) if admin else (DATA, Link(STORAGE_CODEC, "t"))
    opening = AdminOpenRequest(-1, key, count) if admin else OpenRequest(*NOBODY, key, count)  # type: ignore[arg-type]
    try:
        await world._peer(address, link, opening)
    except AssertionError as refused:
        return str(refused)
    return None


async def count_of(peer: PeerOfNode) -> int:
    answer = await peer.ask(PartitionCountRequest(0))
    assert isinstance(answer, PartitionCountResponse), answer
    return answer.partition_count


@pytest.mark.parametrize("admin", [False, True])
def test_a_peer_that_speaks_of_more_makes_the_node_ask_the_coordinator(admin: bool) -> None:
    """F-35: before, the open request was refused for good."""

    async def test(world: World, asked: Asked) -> None:
        refusal = await knock(world, 5, admin=admin)
        assert refusal is not None
        assert "this node's cluster has 2, the other side's 5" in refusal
        assert world.node.partition_count == 2, "nobody is believed but the coordinator"
        asked.count = 5
        assert await knock(world, 5, admin=admin) is None
        assert world.node.partition_count == 5
        assert await knock(world, 2, admin=admin) is None, "one that has not noticed yet"
        times = len(asked.times)
        assert await knock(world, 4, admin=admin) is None
        assert len(asked.times) == times

    run(test)


def test_new_partitions_are_taken_while_the_others_are_written_to() -> None:
    async def test(world: World, asked: Asked) -> None:
        data, admin = await world.data_peer(), await world.admin_peer()
        await data.succeed(append(0, 3))
        refusal = await admin.refusal(PartitionAssignmentRequest(0, (FOUR,), True, False))
        assert "no partition 4; expected 0 to 1" in refusal
        asked.count = 5
        writing = asyncio.create_task(write_on(data))
        assert await count_of(admin) == 5
        await admin.succeed(PartitionAssignmentRequest(0, (FOUR,), True, False))
        await writing
        status = await admin.ask(AssignedPartitionStatusRequest(0))
        assert isinstance(status, AssignedPartitionStatusResponse), status
        assert dict(status.statuses) == {0: True, 1: True, 4: True}
        await data.succeed(append(0, 1, partition=FOUR))

    async def write_on(data: PeerOfNode) -> None:
        for first in range(3, 30):
            await data.succeed(append(first, 1))

    disk = run(test)

    async def again(world: World) -> None:
        data = await world.data_peer()
        assert await data.last_id(P0) == 29
        assert await data.last_id(FOUR) == 0

    run_node(again, disk, partition_count=5)


def test_a_node_that_was_away_while_its_cluster_grew_starts_with_more() -> None:
    disk = fresh_disk()
    open_control(disk, assigned=(0, 1)).close()

    async def test(world: World) -> None:
        assert world.node.partition_count == 5
        await (await world.admin_peer()).succeed(
            PartitionAssignmentRequest(0, (FOUR,), True, False)
        )

    run_node(test, disk, partition_count=5)
    assert (
        open_control(disk.crash_clone(random(0)), partition_count=5).promises(FOUR).info.is_assigned
    )


def test_whoever_lacks_the_key_makes_the_node_ask_nobody() -> None:
    async def test(world: World, asked: Asked) -> None:
        refusal = await knock(world, 5, key=OTHER_KEY)
        assert refusal is not None
        assert "cluster keys differ" in refusal
        assert not asked.times

    run(test)


def test_many_who_speak_of_more_cost_the_coordinator_one_question_a_second() -> None:
    async def test(world: World, asked: Asked) -> None:
        asked.seconds = 0.1
        refusals = await asyncio.gather(*(knock(world, 9) for _ in range(50)))
        assert all("counts differ" in (each or "") for each in refusals)
        gaps = [after - before for before, after in zip(asked.times, asked.times[1:], strict=False)]
        assert len(asked.times) <= 4
        assert all(gap >= GROWTH_LOOK_SECONDS for gap in gaps)

    run(test)


def test_an_answer_that_came_before_the_question_is_none() -> None:
    """Whoever asks is told what the coordinator said later than that."""

    async def test(world: World, asked: Asked) -> None:
        admin = await world.admin_peer()
        for count in (3, 4, 5):
            asked.count = count
            assert await count_of(admin) == count

    run(test)


def test_a_coordinator_that_does_not_answer_is_told() -> None:
    async def test(world: World, asked: Asked) -> None:
        asked.error = CoordinatorLostError("gone")
        refusal = await knock(world, 5)
        assert refusal is not None
        assert "the coordinator does not say how many partitions the cluster has: gone" in refusal
        asked.error, asked.seconds = None, 1000.0
        refusal = await knock(world, 5)
        assert refusal is not None
        assert "the coordinator has not said in 3 s" in refusal
        asked.seconds, asked.count = 0.0, 5
        assert await knock(world, 5) is None

    run(test)


def test_a_disk_that_refuses_leaves_the_node_as_it_was() -> None:
    disk = fresh_disk()

    async def test(world: World, asked: Asked) -> None:
        data, admin = await world.data_peer(), await world.admin_peer()
        asked.count = 5
        disk.fault = fail_nth(DiskOperation.RENAME, 1)
        assert "could not make room for 5 partitions" in await admin.refusal(
            PartitionCountRequest(0)
        )
        assert world.node.partition_count == 2
        await data.succeed(append(0, 1))
        assert await count_of(admin) == 5

    run(test, disk)


def test_a_disk_call_that_does_not_return_holds_the_others_up_for_a_moment() -> None:
    async def test(world: World, asked: Asked) -> None:
        data, admin = await world.data_peer(), await world.admin_peer()
        await data.succeed(append(0, 1))
        asked.count = 5
        async with world.node._queues[P0].pause():
            refusal = await admin.refusal(PartitionCountRequest(0))
            assert "a disk call of a partition has not returned for 1 s" in refusal
            await data.succeed(append(0, 1, partition=PartitionId(1)))
        assert await count_of(admin) == 5

    run(test)


def test_a_cluster_never_shrinks() -> None:
    async def test(world: World, asked: Asked) -> None:
        asked.count = 1
        assert await count_of(await world.admin_peer()) == 2

    run(test)
