"""One server and one storage node as processes, on a coordinator that says what a test wants."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from tests.interop.conversation import Conversation
from tests.tls_files import TlsFiles
from waltz.cli.trial_directory import choose_ports
from waltz.cluster.cluster_shell import StorageEntry, create_cluster
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.host import ANY_VERSION, Coordinator
from waltz.system.embedded_server import EmbeddedCoordinatorServer
from waltz.system.real_host import real_host
from waltz.system.tcp_network import NOT_CONFIGURED
from waltz.types import Address, Generation, PartitionId, ServerId, TlsSettings

KEY: Final = UUID("00112233-4455-6677-8899-aabbccddeeff")
"""The cluster key of the original's frames."""

PARTITIONS: Final = 4
GENERATION: Final = 3
LOOPBACK: Final = "127.0.0.1"

T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own, with a coordinator on it."""

    def __init__(self, directory: Path, tls: TlsSettings) -> None:
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = EmbeddedCoordinatorServer(str(directory / "coordinator.json"), tls=tls)
        self.address = Address(LOOPBACK, choose_ports(LOOPBACK, 0, 1)[0])
        self.run(self._server.start(self.address))

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(60)

    def ask(self, question: Callable[[Coordinator], Coroutine[Any, Any, T]]) -> T:
        """Have something done with a session of its own."""

        async def main() -> T:
            door = real_host(self.address, self._tls).coordinator
            try:
                return await question(door)
            finally:
                await door.close()

        return self.run(main())

    def close(self) -> None:
        self.run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@contextmanager
def running_loop(directory: Path, tls: TlsSettings = NOT_CONFIGURED) -> Iterator[Loop]:
    loop = Loop(directory, tls)
    try:
        yield loop
    finally:
        loop.close()


@contextmanager
def running_node(directory: Path, role: str, *arguments: str) -> Iterator[None]:
    """Run `waltz storage` or `waltz server` until the block ends, then stop it with SIGTERM."""
    with (directory / f"{role}.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "waltz.cli.main", role, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said == "ready\n", (directory / f"{role}.log").read_text()[-2000:]
        yield
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


POLICY: Final = """
version: 1
mode: deny
default: deny
roles:
  node: {verbs: [server]}
  client: {verbs: [read, append, prefer, status], partitions: all}
  tool: {verbs: [read, admin, status], partitions: all}
grants:
  "spiffe://tests/server": [node]
  "spiffe://tests/client": [client]
  "spiffe://tests/tool": [tool]
"""
"""Each peer is granted what the original asked for in its role, and nothing besides."""


class Guard:
    """A policy that denies whatever it does not name, and certificates for those whom it names."""

    def __init__(self, directory: Path) -> None:
        self._tls = TlsFiles(directory)
        (directory / "policy.yaml").write_text(POLICY)
        self._file = directory / "access.yml"
        self._file.write_text(f"access.policy: {directory / 'policy.yaml'}\n")

    def options(self, name: str) -> list[str]:
        """Of a process that is `name` and asks the policy."""
        tls = ("--tls-cert", self._certificate(name), "--tls-ca", self._tls.authorities)
        return [str(self._file), *tls]

    def settings(self, name: str) -> TlsSettings:
        return TlsSettings(certificate=self._certificate(name), authorities=self._tls.authorities)

    def context(self, name: str) -> ssl.SSLContext:
        """Of a peer of the original that shows the certificate of `name`."""
        context = ssl.create_default_context(cafile=self._tls.authorities)
        context.load_cert_chain(self._certificate(name))
        return context

    def _certificate(self, name: str) -> str:
        return self._tls.issue(name, LOOPBACK, "localhost")


@contextmanager
def running_storage(
    directory: Path, coordinator: Address, data: Address, admin: Address, guard: Guard | None = None
) -> Iterator[None]:
    (directory / "storage").mkdir(exist_ok=True)
    with running_node(
        directory,
        "storage",
        *(guard.options("storage") if guard else ()),
        *("--coordinator", str(coordinator), "--directory", str(directory / "storage")),
        *("--address", str(data), "--admin-address", str(admin)),
        *("--disk-free-min", "64MiB", "--assign-all"),
    ):
        yield


async def make_cluster(
    door: Coordinator, storage: StorageEntry, generation: int = GENERATION
) -> None:
    """Write a cluster whose next server has all partitions in this generation."""
    await create_cluster(
        door, name="golden", partition_count=PARTITIONS, cluster_key=KEY, storages=[storage]
    )
    before = {PartitionId(number): Generation(generation - 1) for number in range(PARTITIONS)}
    gone = PartitionAssignment(0, PARTITIONS, {ServerId(99): before})
    await door.write(ClusterPaths().server_descriptors, gone.encode(), version=ANY_VERSION)


class Nodes:
    """Where everything is; `guard`: of a cluster whose processes ask a policy, over TLS."""

    def __init__(self, loop: Loop, guard: Guard | None) -> None:
        self.loop = loop
        self.guard = guard
        ports = choose_ports(LOOPBACK, 0, 3)
        self.data, self.admin, self.server = (Address(LOOPBACK, port) for port in ports)

    @property
    def coordinator(self) -> Address:
        return self.loop.address

    def tls(self, name: str) -> TlsSettings | None:
        """The TLS settings of one of our clients."""
        return self.guard.settings(name) if self.guard else None

    def talk(self, address: Address, name: str) -> Conversation:
        """A connection of a peer of the original, which is `name` to those who ask a policy."""
        return Conversation(address, self.guard.context(name) if self.guard else None)


@contextmanager
def running_nodes(
    directory: Path, *, server: bool = True, storage: bool = True, guard: Guard | None = None
) -> Iterator[Nodes]:
    """A cluster of one storage node and one server; without one of them, a test plays it."""
    with ExitStack() as stack:
        tls = guard.settings("coordinator") if guard else NOT_CONFIGURED
        nodes = Nodes(stack.enter_context(running_loop(directory, tls)), guard)
        entry = StorageEntry(nodes.data, nodes.admin)
        nodes.loop.ask(lambda door: make_cluster(door, entry))
        if storage:
            stack.enter_context(
                running_storage(directory, nodes.coordinator, nodes.data, nodes.admin, guard)
            )
        if server:
            stack.enter_context(running_server(directory, nodes))
        yield nodes


@contextmanager
def running_server(directory: Path, nodes: Nodes) -> Iterator[None]:
    coordinator = ("--coordinator", str(nodes.coordinator))
    options = nodes.guard.options("server") if nodes.guard else ()
    with running_node(directory, "server", *options, *coordinator, "--address", str(nodes.server)):
        yield
