"""What a reader yields does not depend on the version of its server."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.server.real_server import running_server
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.connections.connection_shell import UNRESTORED
from waltz.connections.logical_handshake import ConnectionSettings
from waltz.host import Host
from waltz.reader import reader_shell
from waltz.reader.reader_shell import AsyncLogReader
from waltz.reader.transaction_columns import BlockData
from waltz.wire.client_protocol import CLIENT_CODEC

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
