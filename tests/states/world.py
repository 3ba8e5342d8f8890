"""A cluster whose processes a test starts, stops, starves, cuts off and damages.

Owns the cluster, the proxies before its storage nodes, and the questions that are asked. What the
test knows of the cluster it knows because it has done it: nothing is taken from the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.clusters import Said, run_tool, run_waltz, wait_until
from tests.live.faults import Proxy
from tests.live.launch import Cluster, free_addresses
from tests.states.node import HANGING_SUFFIX
from waltz import NoCallbacks, open_client
from waltz.cluster.cluster_shell import StorageEntry
from waltz.connections.loop_thread import LoopThread
from waltz.errors import WaltzError
from waltz.types import Address, parse_coordinator

ROOMY: Final = 1 << 40
PARTITIONS: Final = 2
HOLDERS: Final = ("s1", "s2", "s3")
SPARE: Final = "s4"
SERVERS: Final = ("v1", "v2")
APPEND_SECONDS: Final = 20.0
REFUSED_SECONDS: Final = 3.0


@dataclass
class Metrics:
    """The values of `/metrics`, by name and partition."""

    values: Mapping[tuple[str, str], float]

    @classmethod
    def parse(cls, text: str) -> Metrics:
        found: dict[tuple[str, str], float] = {}
        for line in text.splitlines():
            if line.startswith("waltz_server_"):
                name, _, value = line.rpartition(" ")
                name, _, labels = name.partition("{")
                partition = labels.partition('partition="')[2].partition('"')[0]
                found[name.removeprefix("waltz_server_"), partition] = float(value)
        return cls(found)


@dataclass
class Answers:
    """The answers of the program at one moment; None for a server that does not answer."""

    asked_at: float
    status: Said
    verify: Said
    health: dict[str, tuple[int, dict[str, Any]] | None] = field(default_factory=dict)
    metrics: dict[str, Metrics | None] = field(default_factory=dict)


class World:
    """The cluster, for tests that block: it runs on a loop in a thread of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._addresses = free_addresses(1 + 4 * 5 + 2 * 2)
        self._loop = LoopThread("world", asyncio.new_event_loop())
        place = next(self._addresses)
        self.coordinator = str(place)
        self._cluster = Cluster(directory, place, program="tests.states.node")
        self.processes = {
            "coordinator": self._cluster.add(
                *("coordinator", "tests.states.node", "coordinator"),
                *(str(directory / "coordinator.json"), self.coordinator),
            )
        }
        self.data: dict[str, str] = {}
        self.admin: dict[str, str] = {}
        self.servers: dict[str, str] = {}
        self.http: dict[str, Address] = {}
        self.proxies: dict[str, tuple[Proxy, Proxy]] = {}
        for name in (*HOLDERS, SPARE):
            self._add_storage(name)
        for name in SERVERS:
            address, self.http[name] = next(self._addresses), next(self._addresses)
            self.servers[name] = str(address)
            self._cluster.add_server(name, address, "--http-address", str(self.http[name]))
        self.processes |= self._cluster.nodes

    # Making and ending

    def begin(self) -> None:
        self.start("coordinator")
        self.done("cluster", "create", "-n", "states", "-p", str(PARTITIONS))
        for group, name in enumerate((*HOLDERS, SPARE)):
            port = self.admin[name].rpartition(":")[2]
            where = ("-s", self.data[name], "-a", port, "-g", str(group))
            self.done("cluster", "add-storage", *where)
            self.start(name)
        for group in range(len(HOLDERS)):
            self.done("cluster", "auto-assign", "-g", str(group))
        self.done("admin storage", "sync-partitions")
        for name in SERVERS:
            self.start(name)

    def end(self) -> None:
        self.kill(*self.processes)
        for proxies in self.proxies.values():
            for proxy in proxies:
                self._loop.call(proxy.stop())
        self._loop.stop()

    def _add_storage(self, name: str) -> None:
        """The cluster knows a storage node by the addresses of its proxies, which can be cut."""
        outer, outer_admin, own, own_admin = (next(self._addresses) for _ in range(4))
        self.data[name], self.admin[name] = str(outer), str(outer_admin)
        self.proxies[name] = Proxy(own), Proxy(own_admin)
        for proxy, address in zip(self.proxies[name], (outer, outer_admin), strict=True):
            self._loop.call(proxy.start(address))
        self.size(name).write_text(str(ROOMY))
        self.http[name] = next(self._addresses)
        self._cluster.add_storage(
            *(name, StorageEntry(own, own_admin), "--advertised", str(outer)),
            *("--http-address", str(self.http[name])),
            WALTZ_STATE_DISK=str(self.size(name)),
        )

    # What is done to it

    def files(self, name: str) -> Path:
        return self.directory / name

    def size(self, name: str) -> Path:
        return self.directory / f"{name}.size"

    def start(self, name: str, **environment: str) -> None:
        self._loop.call(self.processes[name].start(**environment))

    def stop(self, *names: str) -> None:
        """As a machine that hangs: nothing answers, nothing is closed."""
        for name in names:
            self.processes[name].stop()

    def resume(self, *names: str) -> None:
        for name in names:
            self.processes[name].resume()

    def kill(self, *names: str) -> None:
        for name in names:
            self._loop.call(self.processes[name].kill())

    def finish(self, name: str) -> None:
        self._loop.call(self.processes[name].end())

    def restart(self, name: str, **environment: str) -> None:
        if self.processes[name].runs:
            self.finish(name)
        self.start(name, **environment)

    def cut(self, name: str, *, is_cut: bool) -> None:
        """Nothing gets through to a storage node any more, and nothing says so; or it does again,
        over new connections."""

        async def act() -> None:
            for proxy in self.proxies[name]:
                if is_cut:
                    proxy.hold()
                else:
                    proxy.cut()
                    proxy.let_go()

        self._loop.call(act())

    def fill(self, *names: str) -> None:
        """Take all room from the disks."""
        for name in names:
            self.size(name).write_text("0")

    def empty(self, *names: str) -> None:
        for name in names:
            self.size(name).write_text(str(ROOMY))

    def hang(self, partition: int, *names: str) -> None:
        """Let no sync of a file of `partition` end on these nodes, until `go_on`."""
        for name in names:
            self.size(name).with_suffix(HANGING_SUFFIX).write_text(str(partition))

    def go_on(self, *names: str) -> None:
        for name in names:
            self.size(name).with_suffix(HANGING_SUFFIX).unlink()

    def blank(self, name: str) -> None:
        shutil.rmtree(self.files(name))
        self.files(name).mkdir()

    def flip_a_bit(self, name: str, partition: int, of: bytes) -> None:
        """Damage, on disk, the record that holds `of`."""
        for segment in sorted((self.files(name) / str(partition)).glob("*.seg")):
            content = bytearray(segment.read_bytes())
            if (at := content.find(of)) >= 0:
                content[at] ^= 1
                segment.write_bytes(content)
                return
        raise AssertionError(f"{of!r} is nowhere on {name}")

    # What is asked

    def tool(self, group: str, command: str, *arguments: str) -> Said:
        where = ("--cluster", self.coordinator)
        return run_tool(*group.split(), command, *where, *arguments)

    def done(self, group: str, command: str, *arguments: str) -> Said:
        said = self.tool(group, command, *arguments)
        assert said.code == 0, (command, said.out, said.err)
        return said

    def ask(self) -> Answers:
        """Ask at one moment everything that says how the cluster is."""
        with ThreadPoolExecutor() as pool:
            asked_at = time.monotonic()
            status = pool.submit(self._tool_process, "status", "--json")
            verify = pool.submit(self._tool_process, "cluster", "verify", "--json", "-t", "4")
            health = {name: pool.submit(self.read_http, name, "/health") for name in SERVERS}
            metrics = {name: pool.submit(self.read_http, name, "/metrics") for name in SERVERS}
            found = Answers(asked_at, status.result(), verify.result())
            for name in SERVERS:
                said, values = health[name].result(), metrics[name].result()
                found.health[name] = None if said is None else (said[0], json.loads(said[1]))
                found.metrics[name] = None if values is None else Metrics.parse(values[1])
        return found

    def _tool_process(self, *arguments: str) -> Said:
        done = run_waltz(*arguments, "--cluster", self.coordinator, seconds_max=300)
        return Said(done.returncode, done.stdout, done.stderr)

    def read_http(self, name: str, path: str) -> tuple[int, str] | None:
        connection = http.client.HTTPConnection(*self.http[name], timeout=5)
        try:
            connection.request("GET", path, headers={"Accept": "text/plain"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return None
        finally:
            connection.close()

    def append(self, partition: int, *, seconds: float = APPEND_SECONDS) -> bool:
        """Whether a transaction of the test's own is committed in time."""
        committed = threading.Event()

        def work() -> None:
            with (
                contextlib.suppress(WaltzError),
                open_client(parse_coordinator(self.coordinator), NoCallbacks()) as client,
            ):
                client.append(partition, b"a transaction", timeout_seconds=seconds)
                committed.set()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(seconds + 10)
        return committed.is_set()

    def wait_until_well(self) -> None:
        last: list[Said] = []

        def is_well() -> bool:
            last[:] = [self.tool("cluster", "verify")]
            return last[0].code == 0

        try:
            wait_until(is_well, "the cluster does not become well")
        except AssertionError:
            raise AssertionError(f"not well again: {last[0].out} {last[0].err}") from None


@contextmanager
def running_world(directory: Path) -> Iterator[World]:
    world = World(directory)
    try:
        world.begin()
        world.wait_until_well()
        yield world
    finally:
        world.end()
