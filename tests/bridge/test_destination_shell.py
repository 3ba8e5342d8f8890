"""The frame of a bridge with a destination that is a list, and fails as it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest

import waltz
from tests.clusters import RunningCluster, running_cluster
from waltz.bridge.bridge_progress import PartitionProgress
from waltz.bridge.bridge_shell import BridgeOptions, BridgeProcess
from waltz.bridge.delivery import ONCE_ATTEMPTS_MAX, Accepted, Refused
from waltz.bridge.destination_shell import (
    Available,
    DeliveryFailedError,
    Destination,
    Lane,
    LogEnds,
    ReplacedError,
)
from waltz.errors import UnavailableError
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


class CutReader:
    """A reader whose feeds are cut when they have come to the end of the log; one that begins there
    waits for more."""

    def __init__(self, reader: waltz.AsyncLogReader, end: int) -> None:
        self._reader = reader
        self._end = end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def follow(
        self, partition_id: int, first: int
    ) -> AsyncGenerator[waltz.TransactionColumns, None]:
        async for columns in self._reader.follow(partition_id, first):
            yield columns
            if columns.first_transaction_id + len(columns) == self._end:
                raise UnavailableError("no server in time")


def process_of(
    cluster: RunningCluster, to: Destination, *, cut_at: int | None = None
) -> BridgeProcess:
    """A bridge that runs once; with `cut_at` one that runs on, with a `CutReader`."""

    def open_reader() -> Any:
        reader = waltz.open_async_reader(cluster.coordinator, name="bridge")
        return reader if cut_at is None else CutReader(reader, cut_at)

    options = BridgeOptions(
        partitions=None, begins_with_first=True, retry_seconds_max=0.1, connections_max=2,
        is_once=cut_at is None,
    )  # fmt: skip
    return BridgeProcess(real_host(None, TlsSettings()), to, open_reader, options)


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


def test_a_bridge_that_could_not_read_the_log_is_well_again_though_nothing_new_comes(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    to = ListDestination()

    async def main() -> None:
        process = process_of(cluster, to, cut_at=10)
        await process.start()
        running = asyncio.create_task(process.run())

        def is_well_again() -> bool:
            figures = process.figures()
            return figures.is_healthy and all(each.refusals for each in figures.partitions)

        async with asyncio.timeout(60):
            while not is_well_again():
                await asyncio.sleep(0.01)
        await process.stop()
        await running

    with caplog.at_level("INFO"):
        asyncio.run(main())
    assert [len(each) for each in to.kept.values()] == [10, 10]
    assert "bridge_resumed partition=0 next=10 last=9" in caplog.text


class AwayReader:
    """A reader of a cluster that does not answer."""

    starts = 0

    async def start(self) -> None:
        self.starts += 1
        raise UnavailableError("no server in time")

    async def close(self) -> None: ...


def test_a_bridge_that_runs_once_gives_up_after_a_few_attempts_to_reach_its_cluster() -> None:
    reader: Any = AwayReader()
    options = BridgeOptions(None, True, 0.1, 2, is_once=True)
    process = BridgeProcess(
        real_host(None, TlsSettings()), ListDestination(), lambda: reader, options
    )

    async def main() -> None:
        async with asyncio.timeout(60):
            await process.start()
            await process.run()

    asyncio.run(main())
    assert reader.starts == ONCE_ATTEMPTS_MAX
    assert not process.is_complete
    assert process.figures().trouble == "no server in time"
