"""A cluster whose processes a test starts, stops, starves, cuts off and damages.

Owns the processes, the proxies before the storage nodes, and the questions that are asked. What it
knows of the cluster it knows because it has done it: nothing is taken from the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.cli.operated_cluster import Said, run_tool
from tests.clusters import ROOT, wait_until
from tests.zookeepers import Proxy
from waltz import NoCallbacks, open_client
from waltz.cli.trial_directory import choose_ports
from waltz.errors import WaltzError
from waltz.types import Address, parse_coordinator

MIB: Final = 1 << 20
ROOMY: Final = 1 << 40
PARTITIONS: Final = 2
HOLDERS: Final = ("s1", "s2", "s3")
SPARE: Final = "s4"
SERVERS: Final = ("v1", "v2")
APPEND_SECONDS: Final = 20.0
REFUSED_SECONDS: Final = 3.0


@dataclass
class Process:
    arguments: list[str]
    environment: dict[str, str]
    running: subprocess.Popen[str] | None = None


@dataclass
class Metrics:
    """What `/metrics` says, by name and partition."""

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
    """What the program says at one moment; the parts of a server that does not answer are None."""

    asked_at: float
    status: Said
    verify: Said
    health: dict[str, tuple[int, dict[str, Any]] | None] = field(default_factory=dict)
    metrics: dict[str, Metrics | None] = field(default_factory=dict)


class World:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes: dict[str, Process] = {}
        ports = choose_ports("127.0.0.1", 0, 1 + 4 * 4 + 2 * 2)
        taken = iter(ports)
        self.coordinator = f"127.0.0.1:{next(taken)}"
        self.data: dict[str, str] = {}
        self.admin: dict[str, str] = {}
        self.servers: dict[str, str] = {}
        self.http: dict[str, int] = {}
        self.proxies: dict[str, tuple[Proxy, Proxy]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._add(
            "coordinator", "coordinator", str(directory / "coordinator.json"), self.coordinator
        )
        for name in (*HOLDERS, SPARE):
            numbers = [next(taken) for _ in range(4)]
            self._add_storage(name, *(f"127.0.0.1:{number}" for number in numbers))
        for name in SERVERS:
            self.servers[name] = f"127.0.0.1:{next(taken)}"
            self.http[name] = next(taken)
            self._add(
                *(name, "server", "--coordinator", self.coordinator),
                *("--address", self.servers[name]),
                *("--http-address", f"127.0.0.1:{self.http[name]}"),
            )

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
        self.start("v1")
        self.start("v2")

    def end(self) -> None:
        for process in self.processes.values():
            if process.running is not None:
                process.running.kill()
                process.running.communicate()
        for proxies in self.proxies.values():
            for proxy in proxies:
                self._await(proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _add(self, name: str, *arguments: str, **environment: str) -> None:
        self.processes[name] = Process([*arguments], environment)

    def _add_storage(self, name: str, data: str, admin: str, own: str, own_admin: str) -> None:
        """The cluster knows a storage node by the addresses of its proxies, which can be cut."""
        self.data[name], self.admin[name] = data, admin
        proxies = Proxy(Address.parse(own)), Proxy(Address.parse(own_admin))
        self._await(proxies[0].listen(Address.parse(data)))
        self._await(proxies[1].listen(Address.parse(admin)))
        self.proxies[name] = proxies
        self.size(name).write_text(str(ROOMY))
        self.files(name).mkdir()
        self._add(
            *(name, "storage", "--directory", str(self.files(name))),
            *("--coordinator", self.coordinator, "--address", own, "--admin-address", own_admin),
            *("--advertised", data, "--disk-free-min", "1MiB"),
            WALTZ_STATE_DISK=str(self.size(name)),
        )

    def _await(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result(60)

    # What is done to it

    def files(self, name: str) -> Path:
        return self.directory / name

    def size(self, name: str) -> Path:
        return self.directory / f"{name}.size"

    def start(self, name: str, **environment: str) -> None:
        process = self.processes[name]
        with (self.directory / f"{name}.log").open("a") as log:
            process.running = subprocess.Popen(
                [sys.executable, "-m", "tests.states.node", *process.arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=os.environ | process.environment | environment,
            )
        assert process.running.stdout is not None
        said = process.running.stdout.readline()
        assert said == "ready\n", (self.directory / f"{name}.log").read_text()[-2000:]

    def send(self, name: str, number: signal.Signals) -> None:
        running = self.processes[name].running
        assert running is not None
        running.send_signal(number)

    def stop(self, *names: str) -> None:
        """As a machine that hangs: nothing answers, nothing is closed."""
        for name in names:
            self.send(name, signal.SIGSTOP)

    def resume(self, *names: str) -> None:
        for name in names:
            self.send(name, signal.SIGCONT)

    def kill(self, *names: str) -> None:
        for name in names:
            self.finish(name, signal.SIGKILL)

    def finish(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self.processes[name]
        assert process.running is not None
        process.running.send_signal(number)
        process.running.communicate(timeout=60)
        process.running = None

    def restart(self, name: str, **environment: str) -> None:
        if self.processes[name].running is not None:
            self.finish(name)
        self.start(name, **environment)

    def cut(self, name: str, *, is_cut: bool) -> None:
        """Nothing gets through to a storage node any more, and nothing says so; or it does again,
        over new connections."""

        async def act() -> None:
            for proxy in self.proxies[name]:
                gates = (proxy.requests, proxy.answers)
                for gate in gates:
                    gate.clear() if is_cut else gate.set()
                if not is_cut:
                    proxy.cut()

        self._await(act())

    def fill(self, *names: str) -> None:
        """Take all room from the disks."""
        for name in names:
            self.size(name).write_text("0")

    def empty(self, *names: str) -> None:
        for name in names:
            self.size(name).write_text(str(ROOMY))

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
        found = Answers(time.monotonic(), Said(-1, "", ""), Said(-1, "", ""))

        def status() -> None:
            found.status = self._tool_process("status", "--json")

        def verify() -> None:
            found.verify = self._tool_process("cluster", "verify", "--json", "-t", "4")

        def server(name: str) -> None:
            health = self._http(name, "/health")
            metrics = self._http(name, "/metrics")
            found.health[name] = None if health is None else (health[0], json.loads(health[1]))
            found.metrics[name] = None if metrics is None else Metrics.parse(metrics[1])

        threads = [threading.Thread(target=each) for each in (status, verify)]
        threads += [threading.Thread(target=server, args=(name,)) for name in SERVERS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def _tool_process(self, *arguments: str) -> Said:
        done = subprocess.run(
            [sys.executable, "-m", "waltz.cli.main", *arguments, "--cluster", self.coordinator],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def _http(self, name: str, path: str) -> tuple[int, str] | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.http[name], timeout=5)
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
