"""A hundred clients of one server that is killed and comes back: how often they try to reach it.

make chaos-storm
python -m tests.chaos.storm --down 30

Owns the clients, which live in one process, and the count. All connections pass a proxy, which is
there while the server is not: whoever tries then is let in and reset.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import waltz
from tests.chaos.cluster import ProxiedCluster
from tests.live.launch import running
from waltz.limits import (
    CONNECTION_RESTORE_SECONDS,
    RECONNECT_BROKEN_SECONDS_MAX,
    RECONNECT_SECONDS_MAX,
    RECONNECT_SECONDS_MIN,
)

CLIENTS: Final = 100
SECONDS_MAX: Final = 120.0
"""However long a busy machine takes."""

TOGETHER: Final = 2
"""What tries at a time in one client: one of its connections, and its search for a server."""

ON_SUCCESS: Final = 4
"""Attempts of a client that succeed: connections of both roles, restored or new, and a guide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """What was counted; attempts per second of the run, the first one that of the kill."""

    clients: int
    restore_seconds: float
    reconnect_seconds_max: float
    attempts: tuple[int, ...]
    back_seconds: float
    """From the moment in which the server was ready until all had appended."""

    @property
    def attempts_max(self) -> int:
        """The most that there may be, by the pauses that docs/operating/connecting.md promises:
        each is half as long as it could be at the least."""
        doublings = math.ceil(math.log2(self.reconnect_seconds_max / RECONNECT_SECONDS_MIN)) + 1
        broken = self.restore_seconds / (RECONNECT_BROKEN_SECONDS_MAX / 2)
        steady = len(self.attempts) / (self.reconnect_seconds_max / 2)
        return math.ceil(self.clients * (broken + TOGETHER * (doublings + steady) + ON_SUCCESS))


async def storm(
    directory: Path,
    *,
    down_seconds: float,
    clients: int = CLIENTS,
    restore_seconds: float = CONNECTION_RESTORE_SECONDS,
    reconnect_seconds_max: float = RECONNECT_SECONDS_MAX,
) -> Storm:
    """Let `clients` connect, the server die, be away for `down_seconds`, and all append again."""
    async with running(
        ProxiedCluster(directory, restore_seconds=[restore_seconds], partitions=1)
    ) as cluster:
        (proxy,), (server,) = cluster.proxies, cluster.servers.values()
        opened = [
            waltz.open_async_client(
                cluster.address,
                waltz.NoCallbacks(),
                mount_seconds_max=SECONDS_MAX,
                connection_seconds_max=SECONDS_MAX,
                reconnect_seconds_max=reconnect_seconds_max,
            )
            for _ in range(clients)
        ]
        for start in range(0, clients, 10):
            await asyncio.gather(*[client.start() for client in opened[start : start + 10]])
        try:
            await _append_all(opened)
            proxy.arrivals.clear()
            target, proxy.target = proxy.target, None
            killed_at = time.monotonic()
            await server.kill()
            await asyncio.sleep(down_seconds)
            await server.start()
            proxy.target = target
            restarted_at = time.monotonic()
            await _append_all(opened)
            back_seconds = time.monotonic() - restarted_at
        finally:
            await asyncio.gather(*[client.close() for client in opened])
        seconds = Counter(int(moment - killed_at) for moment in proxy.arrivals)
        return Storm(
            clients=clients,
            restore_seconds=restore_seconds,
            reconnect_seconds_max=reconnect_seconds_max,
            attempts=tuple(seconds[second] for second in range(max(seconds) + 1)),
            back_seconds=back_seconds,
        )


async def _append_all(clients: list[waltz.AsyncWaltzClient]) -> None:
    await asyncio.gather(*[client.append(0, b"there") for client in clients])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.storm", description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--down", type=float, default=30.0, help="seconds without the server")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="waltz-storm-") as directory:
        found = asyncio.run(
            storm(Path(directory) / "run", down_seconds=given.down, clients=given.clients)
        )
    print(f"attempts per second: {' '.join(map(str, found.attempts))}")
    print(
        f"{sum(found.attempts)} in all, of at most {found.attempts_max};"
        f" {max(found.attempts)} in one second; all {found.clients} clients had appended"
        f" {found.back_seconds:.1f} s after the server was ready"
    )
    return 0 if sum(found.attempts) <= found.attempts_max else 1


if __name__ == "__main__":
    sys.exit(main())
