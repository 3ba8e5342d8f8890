"""Storage nodes in this process, for what tools ask and tell them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.storage.support import KEY, batch, t
from tests.storage.talkers import config, data_talker
from waltz.cluster.store_params import StoreParams
from waltz.storage.storage_node_shell import StorageNode
from waltz.system.real_host import real_host
from waltz.types import PartitionId, SessionId
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    SetLowWaterMarkRequest,
    SuccessResponse,
)

PARAMS = StoreParams(KEY, 3)
"""Of the cluster that the nodes of `tests.storage.talkers` belong to."""

SECONDS_MAX = 60.0


def run_nodes(directory: Path, count: int, story: Callable[..., Awaitable[None]]) -> None:
    """Run `story` on `count` nodes with partitions 0 and 1, and stop them cleanly."""

    async def main() -> None:
        nodes = []
        for number in range(count):
            (directory / str(number)).mkdir()
            nodes.append(StorageNode(real_host(None), config(directory / str(number))))
            await nodes[-1].start()
        try:
            await asyncio.wait_for(story(*nodes), SECONDS_MAX)
        finally:
            for node in nodes:
                await node.stop()

    asyncio.run(main())


async def fill(
    node: StorageNode,
    count: int,
    *,
    session: int = 5,
    mark: int | None = None,
    partition: int = 0,
) -> None:
    """Let the node hold `count` records, all of them before its store session began, which knew of
    more committed ones if `mark` says so."""
    talker = await data_talker(node)
    number = PartitionId(partition)
    head = (SessionId(session), 0, number)
    if count:
        request = AppendRecordsRequest(*head, batch(0, count, partition=partition), offline=False)
        assert await talker.ask(request) == SuccessResponse(*head)
    committed = t(count - 1 if mark is None else mark)
    promise = SetLowWaterMarkRequest(*head, committed, offline=False)
    assert await talker.ask(promise) == SuccessResponse(*head)
    talker.connection.close()
