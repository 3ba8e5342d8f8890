"""A silent peer is given up, and one that is only slow is not. The other half needs a network that
drops packets: `tests/network/silent_peer.py`."""

from __future__ import annotations

import asyncio

import pytest

from tests.system.conftest import Run
from tests.system.greeters import LOOPBACK
from waltz.host import Connection
from waltz.system import peer_watch
from waltz.system.tcp_network import RealNetwork


def test_a_peer_that_reads_nothing_is_not_a_silent_one(
    run: Run, network: RealNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It acknowledges that it was asked to take more, and goes on when it likes."""
    monkeypatch.setattr(peer_watch, "UNACKNOWLEDGED_SECONDS_MAX", 0.2)
    monkeypatch.setattr(peer_watch, "UNACKNOWLEDGED_LOOK_SECONDS", 0.05)
    data = bytes(48 * 1024 * 1024)

    async def story() -> None:
        resuming = asyncio.Event()
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def accept(connection: Connection) -> None:
            await resuming.wait()
            count = 0
            while count < len(data) and (read := await connection.read()):
                count += len(read)
            found.set_result(count)

        listener = await network.listen(LOOPBACK, accept)
        connection = await network.connect(listener.address)
        connection.write(data)
        await asyncio.sleep(1)
        assert connection.unsent_bytes
        resuming.set()
        assert await found == len(data)
        connection.close()
        await listener.close()

    run(story())
