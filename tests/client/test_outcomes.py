"""Outcomes, from the application to a real server and back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.server.real_server import running_server
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import PlainAppend
from waltz.errors import LocalProtocolError


class Plain(PlainAppend):
    """Says when it has ended."""

    def __init__(self) -> None:
        super().__init__(0, b"data")
        self.ended = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def on_completion(self, result: bool) -> None:
        self.loop.call_soon_threadsafe(self.ended.set)


def test_outcomes_are_told_to_their_client_and_to_others(tmp_path: Path) -> None:
    """UA-30."""

    async def main() -> None:
        async with running_server(tmp_path) as (host, _):
            async with AsyncWaltzClient(host, NoCallbacks()) as client:
                assert await client.append(0, b"first", header=1) == 0
                context = Plain()
                await client.submit(context)
                await context.ended.wait()
                request_id = context.request_id
                assert request_id is not None
                at = await client.outcome(request_id, context.executed_at)
                assert at == await client.get_high_water_mark(0)
                unsent = request_id._replace(sequence_number=1000)
                with pytest.raises(LocalProtocolError, match="never sent"):
                    await client.outcome(unsent)
            async with AsyncWaltzClient(host, NoCallbacks()) as another:
                assert await another.outcome(request_id) == at
                assert await another.outcome(unsent) is None

    asyncio.run(asyncio.wait_for(main(), 120.0))
