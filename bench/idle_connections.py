"""Measures thousands of connections that send nothing, or a byte per second: their cost to a server
and a storage node, and to clients that work meanwhile.

make bench-idle
python -m bench.idle_connections --connections 1000 --json

Each line is a cluster of its own. The connections come from a process of its own, and from several
addresses of this machine, because connections per address are bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Final, cast
from uuid import UUID

import waltz
from tests.clusters import RunningCluster, running_cluster
from waltz.bench.calibration import Calibration, calibrate
from waltz.bench.processes import proportional_bytes
from waltz.cli.nodes import run_loop
from waltz.system.tcp_network import CONNECTIONS_PER_PEER_MAX
from waltz.types import NO_SESSION, Address, PartitionId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.frame import encode_frame
from waltz.wire.handshake import Hello
from waltz.wire.lifecycle_protocol import LIFECYCLE_SINCE
from waltz.wire.storage_protocol import STORAGE_CODEC, OpenRequest

APPENDS: Final = 1_000
"""Appends, one at a time, before and during."""

WARM_UP: Final = 300
PARTITIONS: Final = 4
DIALS_AT_A_TIME: Final = 100
STRANGER_SECONDS_MAX: Final = 30.0
MEMORY_BYTES_MAX: Final = 100 * 1024 * 1024
"""The most memory that 10,000 connections may cost."""

SLOWER_MAX: Final = 2.0
"""The most by which connections may multiply the p99 of other clients."""

TARGETS: Final = {"server": "server-1", "storage": "storage-1"}
BEHAVIOURS: Final = (
    "nothing at all",
    "a byte a second of a Hello",
    "nothing after the Hello",
    "a byte a second after the Hello",
)


@dataclass(frozen=True)
class Cost:
    """The cost of one behaviour against one process: memory in bytes (PSS), p99 in seconds; and the
    number of connections that were still open at the end."""

    target: str
    behaviour: str
    connections: int
    open_at_the_end: int
    pss_before: int
    pss_most: int
    p50_alone: float
    p50_beside: float
    p99_alone: float
    p99_beside: float


# The process that has the connections


class Idler(asyncio.Protocol):
    """One idle connection."""

    def __init__(self, opening: bytes, trickle: bytes) -> None:
        """Sends all of `opening` at once; `trickle` over and over, a byte a second."""
        self.is_open = False
        self._opening = opening
        self._trickle = itertools.cycle(trickle)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_open = True
        self._transport = cast(asyncio.Transport, transport)
        self.send(self._opening)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False

    def trickle(self) -> None:
        self.send(bytes([next(self._trickle)]))

    def send(self, data: bytes) -> None:
        if self.is_open and self._transport is not None and data:
            self._transport.write(data)


def opening(target: str, key: UUID) -> tuple[bytes, bytes]:
    """Return the bytes that make a connection known, and an empty frame for later.

    To a server in the protocol of the original's clients: with version 5 a handshake would follow,
    and a client that is silent for `server.idleTimeout` is cut off.
    """
    codec = CLIENT_CODEC.up_to(LIFECYCLE_SINCE - 1) if target == "server" else STORAGE_CODEC
    hello = Hello((max(codec.versions),), "idle").encode()
    if target == "storage":
        request = OpenRequest(NO_SESSION, -1, PartitionId(-1), key, PARTITIONS)
        hello += codec.encode(request, max(codec.versions))
    return hello, encode_frame(codec.magic, max(codec.versions), ())


async def hold(target: str, behaviour: str, address: Address, count: int, key: UUID) -> None:
    """Open the connections, print `open`, keep them until standard input ends, and print how many
    are left."""
    hello, keep_alive = opening(target, key)
    is_known = behaviour.endswith("after the Hello")
    loop = asyncio.get_running_loop()
    idlers: list[Idler] = []
    room = asyncio.Semaphore(DIALS_AT_A_TIME)

    async def dial(number: int) -> None:
        source = f"127.0.2.{1 + number // (CONNECTIONS_PER_PEER_MAX // 2)}"
        async with room:
            _, idler = await loop.create_connection(
                lambda: Idler(hello if is_known else b"", keep_alive if is_known else hello),
                address.host,
                address.port,
                local_addr=(source, 0),
            )
        idlers.append(idler)

    async def trickle() -> None:
        while True:
            began = loop.time()
            for place, idler in enumerate(idlers):
                idler.trickle()
                if place % 100 == 99:  # spread over the second
                    ahead = began + place / max(1, len(idlers)) - loop.time()
                    await asyncio.sleep(max(0.0, ahead))
            await asyncio.sleep(max(0.0, began + 1 - loop.time()))

    trickling = loop.create_task(trickle()) if behaviour.startswith("a byte") else None
    await asyncio.gather(*(dial(number) for number in range(count)))
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    if not is_known:  # strangers are not kept
        patience = loop.time() + STRANGER_SECONDS_MAX
        while any(idler.is_open for idler in idlers) and loop.time() < patience:
            await asyncio.sleep(0.05)
    if trickling is not None:
        trickling.cancel()
    print(sum(idler.is_open for idler in idlers), flush=True)


# Measuring


@contextmanager
def idle_connections(
    cluster: RunningCluster, target: str, behaviour: str, count: int
) -> Iterator[subprocess.Popen[str]]:
    """Hold them open, as far as the other side lets."""
    state = cluster.state
    node = state["servers" if target == "server" else "storages"][0]
    holder = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench.idle_connections", "--hold", target, behaviour),
            *(node["address"], str(count), state["cluster_key"]),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != "open\n":
            raise RuntimeError("the connections were not opened")
        yield holder
    finally:
        holder.kill()
        holder.wait()


def append_seconds(client: waltz.WaltzClient, count: int) -> list[float]:
    """Return the seconds of each of `count` appends, one at a time."""
    taken = []
    for number in range(count):
        start = time.perf_counter()
        client.append(number % PARTITIONS, bytes(128))
        taken.append(time.perf_counter() - start)
    return taken


def p50_and_p99(taken: list[float]) -> tuple[float, float]:
    cuts = quantiles(taken, n=100)
    return cuts[49], cuts[98]


@contextmanager
def working_cluster(directory: Path) -> Iterator[RunningCluster]:
    """A new cluster that has done something."""
    with running_cluster(directory, "--partitions", str(PARTITIONS)) as cluster:
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            append_seconds(client, WARM_UP)
        yield cluster


def measure(
    cluster: RunningCluster, target: str, behaviour: str, count: int, appends: int = APPENDS
) -> Cost:
    """Let a client work without the connections, with them, and without them again, since the
    machine's other load changes meanwhile."""
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        pid = cluster.pid(TARGETS[target])
        alone = append_seconds(client, appends // 2)
        before = proportional_bytes(pid)
        with idle_connections(cluster, target, behaviour, count) as holder:
            opened = proportional_bytes(pid)
            beside = append_seconds(client, appends)
            most = max(opened, proportional_bytes(pid))
            left, _ = holder.communicate("")
        alone += append_seconds(client, appends // 2)
    p50_alone, p99_alone = p50_and_p99(alone)
    p50_beside, p99_beside = p50_and_p99(beside)
    return Cost(
        target, behaviour, count, int(left), before, most,
        p50_alone, p50_beside, p99_alone, p99_beside,
    )  # fmt: skip


def table(costs: list[Cost]) -> Iterator[str]:
    yield (
        f"{'':<8}{'each connection sends':<34}{'open':>7}{'MiB':>7}{'more':>7}"
        f"{'p50 ms':>8}{'loaded':>8}{'p99 ms':>8}{'loaded':>8}"
    )
    for cost in costs:
        more = (cost.pss_most - cost.pss_before) / 2**20
        yield (
            f"{cost.target:<8}{cost.behaviour:<34}{cost.open_at_the_end:>7}"
            f"{cost.pss_before / 2**20:>7.1f}{more:>+7.1f}"
            f"{cost.p50_alone * 1e3:>8.2f}{cost.p50_beside * 1e3:>8.2f}"
            f"{cost.p99_alone * 1e3:>8.2f}{cost.p99_beside * 1e3:>8.2f}"
        )


def is_kept(cost: Cost) -> bool:
    memory_max = MEMORY_BYTES_MAX * cost.connections / 10_000
    return (
        cost.pss_most - cost.pss_before <= memory_max
        and cost.p99_beside <= SLOWER_MAX * cost.p99_alone
    )


def report(costs: list[Cost], calibration: Calibration, *, as_json: bool) -> None:
    if as_json:
        found = {"calibration": asdict(calibration), "costs": [asdict(cost) for cost in costs]}
        print(json.dumps(found, indent=1))
        return
    for line in [*calibration.lines(), *table(costs)]:
        print(line)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the cost of silent connections.")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--target", choices=TARGETS, help="this one only")
    parser.add_argument("--behaviour", choices=BEHAVIOURS, help="this one only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--hold", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hold:
        target, behaviour, address, count, key = arguments.hold
        run_loop(hold(target, behaviour, Address.parse(address), int(count), UUID(key)))
        return 0
    calibration = calibrate()
    costs = []
    for target in [arguments.target] if arguments.target else TARGETS:
        for behaviour in [arguments.behaviour] if arguments.behaviour else BEHAVIOURS:
            with (
                tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as scratch,
                working_cluster(Path(scratch) / "c") as cluster,
            ):
                costs.append(measure(cluster, target, behaviour, arguments.connections))
            if not arguments.json:
                print("\n".join(table(costs[-1:])), flush=True)
    report(costs, calibration, as_json=arguments.json)
    return 0 if all(map(is_kept, costs)) else 1


if __name__ == "__main__":
    sys.exit(main())
