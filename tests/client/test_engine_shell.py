"""What runs behind a client; what applications see of it is covered in `test_client_shell.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.client.applications import Note, Recorder
from tests.client.fake_cluster import FakeCluster, run_with_cluster
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.engine_shell import ClientEngine
from waltz.client.partitions.partition_runner_shell import Send
from waltz.errors import ClientClosedError, NotFoundError
from waltz.wire.message import Message


def test_from_the_moment_that_a_client_fails_every_call_is_told_why() -> None:
    """Before closing has begun, too, and a context that is refused is told the same."""

    async def work(cluster: FakeCluster) -> None:
        async with AsyncWaltzClient(cluster.host, Recorder()) as client:
            client.engine._crash(ValueError("a bug"))
            note = Note()
            with pytest.raises(ClientClosedError, match="the client has failed: ValueError"):
                await client.submit(note)
            assert isinstance(note.story[0], ClientClosedError)
            for call in (client.append(0, b"x"), client.get_high_water_mark(0)):
                with pytest.raises(ClientClosedError, match="a bug"):
                    await call

    run_with_cluster(work)


def test_a_partition_is_looked_up_by_a_number_that_exists() -> None:
    async def work(cluster: FakeCluster) -> None:
        async with AsyncWaltzClient(cluster.host, Recorder()) as client:
            assert client.engine.runner(0).partition_id == 0
            for number in (-1, 1):
                with pytest.raises(NotFoundError, match="expected 0 to 0"):
                    client.engine.runner(number)

    run_with_cluster(work)


def test_what_partitions_send_goes_through_the_sender_of_the_engine() -> None:
    """`waltz.testing` loses appends there."""
    seen: list[Message] = []

    class Noting(ClientEngine):
        def new_sender(self, send: Send) -> Send:
            def noted(connection_sequence: int, messages: Sequence[Message]) -> Any:
                seen.extend(messages)
                return send(connection_sequence, messages)

            return noted

    async def work(cluster: FakeCluster) -> None:
        async with AsyncWaltzClient(cluster.host, Recorder(), new_engine=Noting) as client:
            assert await client.append(0, b"x") == 0

    run_with_cluster(work)
    assert [type(each).__name__ for each in seen] == [
        "DataWanted",
        "MountRequest",
        "FeedRequest",
        "AppendBatch",
    ]
