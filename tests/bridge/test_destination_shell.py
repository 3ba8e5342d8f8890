"""The frame of a bridge with a destination that is a list, and fails as it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from uuid import UUID

import pytest

import waltz
from tests.clusters import RunningCluster, running_cluster
from waltz.bridge.bridge_progress import PartitionProgress
from waltz.bridge.bridge_shell import BridgeOptions, BridgeProcess
from waltz.bridge.delivery import Accepted, Refused
from waltz.bridge.destination_shell import (
    Available,
    DeliveryFailedError,
    Destination,
    Lane,
    LogEnds,
    ReplacedError,
)
from waltz.system.real_host import real_host
from waltz.types import PartitionId, TlsSettings


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    directory = tmp_path_factory.mktemp("bridge") / "bridge-list"
    with running_cluster(directory, "--partitions", "2") as cluster:
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            for number in range(20):
                client.append(number % 2, b"%d" % number)
        yield cluster


class ListDestination:
    """Keeps in lists; fails as `failures` say, the last first."""

    receiver = "a list"
    count_max = 3
    remedy = ""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.begins_failures: list[Exception] = []
        self.kept: dict[int, list[bytes]] = {0: [], 1: []}
        self.ended = 0

    async def start(self) -> None: ...

    async def begin(self, ends: LogEnds, *, with_first: bool) -> Mapping[PartitionId, Lane]:
        if self.begins_failures:
            raise self.begins_failures.pop()
        return {each: ListLane(self, each, ends.history) for each in ends.marks}

    async def flush(self) -> None: ...

    def end(self) -> None:
        self.ended += 1


class ListLane:
    def __init__(self, to: ListDestination, partition_id: int, history: UUID) -> None:
        self._to = to
        self._kept = to.kept[partition_id]
        self._history = history

    @property
    def place(self) -> PartitionProgress:
        return PartitionProgress(len(self._kept), self._history)

    async def deliver(
        self, available: Available, count_max: int, sending: Callable[[int], None]
    ) -> Accepted | Refused:
        columns, first = available.columns, available.first
        at = first - columns.first_transaction_id
        data = columns.data[at : at + count_max]
        sending(first + len(data) - 1)
        if self._to.failures:
            raise self._to.failures.pop()
        self._kept += data
        return Accepted(first + len(data) - 1, len(data))

    async def keep(self, to: PartitionProgress, *, is_due: bool) -> None: ...

    async def close(self) -> None: ...


def process_of(cluster: RunningCluster, to: Destination) -> BridgeProcess:
    options = BridgeOptions(
        partitions=None, begins_with_first=True, retry_seconds_max=0.1, connections_max=2,
        is_once=True,
    )  # fmt: skip
    return BridgeProcess(
        real_host(None, TlsSettings()), to,
        lambda: waltz.open_async_reader(cluster.coordinator, name="bridge"), options,
    )  # fmt: skip


def test_what_fails_is_delivered_again_and_each_transaction_once(cluster: RunningCluster) -> None:
    to = ListDestination(DeliveryFailedError("no answer"), OSError(5, "no"))
    to.begins_failures = [DeliveryFailedError("not there yet")]

    async def main() -> BridgeProcess:
        process = process_of(cluster, to)
        await process.start()
        await process.run()
        return process

    process = asyncio.run(main())
    assert process.is_complete
    assert to.kept == {each: [b"%d" % n for n in range(each, 20, 2)] for each in (0, 1)}
    figures = process.figures()
    assert (figures.receiver, figures.is_healthy, to.ended) == ("a list", True, 1)
    assert sum(each.refusals for each in figures.partitions) == 2


def test_a_bridge_that_was_replaced_ends_all_its_partitions_and_says_why(
    cluster: RunningCluster,
) -> None:
    to = ListDestination(ReplacedError("another process has begun"))

    async def main() -> None:
        process = process_of(cluster, to)
        await process.start()
        await process.run()

    with pytest.raises(ReplacedError, match="another process"):
        asyncio.run(main())
    assert to.ended == 1
