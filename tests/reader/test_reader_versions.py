"""What a reader yields does not depend on the version of its server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.server.real_server import running_server
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.connections.connection_shell import UNRESTORED, Connections, ServerConnection
from waltz.connections.logical_handshake import ConnectionSettings
from waltz.errors import NotFoundError
from waltz.host import Host
from waltz.reader import reader_shell
from waltz.reader.reader_shell import AsyncLogReader
from waltz.reader.transaction_columns import BlockData
from waltz.wire.client_protocol import CLIENT_CODEC, HighWaterMarkRequest
from waltz.wire.history_protocol import MarksRequest
from waltz.wire.lifecycle_protocol import FEATURES, Feature
from waltz.wire.message import Message

COUNT = 300
Row = tuple[int, bytes, int, bytes]


def nothing(headers: NDArray[np.int32]) -> NDArray[np.bool_]:
    return np.zeros(len(headers), np.bool_)


async def rows(host: Host, *, follow: bool, with_data: bool = True) -> tuple[list[Row], set[type]]:
    """Return all rows, and what their data lay in."""
    found: list[Row] = []
    kinds: set[type] = set()
    async with AsyncLogReader(host) as reader:
        wants_data = None if with_data else nothing
        read = reader.follow(0, 0) if follow else reader.read(0, 0, COUNT, wants_data=wants_data)
        async for columns in read:
            kinds.add(type(columns.data))
            for place, data in enumerate(columns.data):
                identity = columns.request_ids[16 * place : 16 * place + 16]
                found.append(
                    (
                        columns.first_transaction_id + place,
                        identity,
                        int(columns.headers[place]),
                        data,
                    )
                )
            if len(found) == COUNT:
                break
    return found, kinds


def test_blocks_have_the_rows_that_the_feed_and_the_bodies_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PM-35, B-6."""

    async def main() -> None:
        async with running_server(tmp_path) as (host, _):
            options = ClientOptions(max_concurrent_transactions=COUNT)
            async with AsyncWaltzClient(host, NoCallbacks(), options) as client:
                made = [client.append(0, bytes(n), header=-n) for n in range(COUNT)]
                transaction_ids = await asyncio.gather(*made)
            blocks, kinds = await rows(host, follow=False)
            followed, _ = await rows(host, follow=True)
            bare, _ = await rows(host, follow=False, with_data=False)
            # A server that knows no ranges of headers feeds them.
            monkeypatch.setattr(reader_shell, "UNRESTORED", ConnectionSettings(features=()))
            fed_bare, _ = await rows(host, follow=False, with_data=False)
            older = replace(UNRESTORED, codec=CLIENT_CODEC.up_to(4))
            monkeypatch.setattr(reader_shell, "UNRESTORED", older)
            fetched, older_kinds = await rows(host, follow=False)
            older_bare, _ = await rows(host, follow=False, with_data=False)
            assert blocks == fetched == followed
            assert bare == fed_bare == older_bare == [(*row[:3], b"") for row in blocks]
            assert [row[0] for row in blocks] == sorted(transaction_ids) == list(range(COUNT))
            assert {(row[2], row[3]) for row in blocks} == {(-n, bytes(n)) for n in range(COUNT)}
            assert (kinds, older_kinds) == ({BlockData}, {list})

    asyncio.run(asyncio.wait_for(main(), 120.0))


async def client_ids_given(host: Host) -> int:
    """The coordinator's own count of the changes of the node that client IDs come from."""
    return (await host.coordinator.read(ClusterPaths(DEFAULT_ROOT).client_id_counter)).version


def test_all_marks_are_told_whatever_the_server_knows_and_no_client_id_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that knows the question, one that does not, and one of the original's versions."""
    asked: list[type] = []
    send = ServerConnection.send

    def counted(connection: ServerConnection, messages: Sequence[Message]) -> object:
        asked.extend(map(type, messages))
        return send(connection, messages)

    async def main() -> None:
        async with running_server(tmp_path, partition_count=5) as (host, server):
            async with AsyncWaltzClient(host, NoCallbacks(), ClientOptions()) as client:
                for number in range(12):
                    await client.append(number % 4, b"x")
            given = await client_ids_given(host)
            monkeypatch.setattr(ServerConnection, "send", counted)
            known = frozenset(FEATURES - {Feature.MARKS})
            for settings, question, count in (
                (ConnectionSettings(), MarksRequest, 1),
                (ConnectionSettings(features=known), HighWaterMarkRequest, 5),
                (ConnectionSettings(codec=CLIENT_CODEC.up_to(4)), HighWaterMarkRequest, 5),
            ):
                monkeypatch.setattr(
                    reader_shell, "Connections", partial(Connections, settings=settings)
                )
                asked.clear()
                async with AsyncLogReader(host) as reader:
                    marks = await reader.high_water_marks([4, 0, 1, 2, 3])
                    assert marks == {4: -1, 0: 2, 1: 2, 2: 2, 3: 2}
                    assert asked == [question] * count
                    assert await reader.high_water_marks([]) == {}
                    with pytest.raises(NotFoundError, match="no partition 5"):
                        await reader.high_water_marks([0, 5])
                    for partition in range(4):
                        found = [each async for each in reader.read(partition, 0, 3)]
                        assert sum(map(len, found)) == 3
            monkeypatch.undo()
            async with AsyncLogReader(host, servers=[server.address]) as reader:
                assert len([each async for each in reader.read(0, 0, 3)]) == 1
                assert await client_ids_given(host) == given
                async for _ in reader.follow(0, 0):  # who mounts has a name
                    break
            assert await client_ids_given(host) == given + 1

    asyncio.run(asyncio.wait_for(main(), 120.0))
