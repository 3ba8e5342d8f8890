"""A cluster as an operator makes it: processes started by hand, tools run against it."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.clusters import Said, run_tool, start_node, wait_until
from tests.zookeepers import RunningZooKeeper
from waltz.cli.trial_directory import choose_ports

EARLY = "Try again when|wait until they have caught up|no answer from ZooKeeper"
"""A command that says one of these would do its work a moment later."""


def run_settled(*arguments: str | Path) -> Said:
    """As `run_tool`, again and again as long as the command says that replicas are on their way
    back, or ZooKeeper, whose sessions here end after 2 s, has not answered in that time on a busy
    machine; return how it ended then."""
    last: list[Said] = []

    def is_settled() -> bool:
        last[:] = [run_tool(*arguments)]
        is_early = re.search(EARLY, last[0].err)
        return last[0].code != 1 or is_early is None

    wait_until(is_settled, f"replicas do not come back for {arguments}")
    return last[0]


@dataclass
class StoragePlace:
    name: str
    address: str
    admin: str
    directory: Path


@dataclass
class OperatedCluster:
    """Storage nodes and servers are processes; what they log lies beside their directories."""

    directory: Path
    zookeeper: str
    root: str = "/operated"
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    storages: dict[str, StoragePlace] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)

    @property
    def coordinator(self) -> str:
        return f"zookeeper://{self.zookeeper}{self.root}?sessionTimeout=2000"

    def tool(self, group: str, command: str, *arguments: str | Path) -> Said:
        """Run `waltz group command` for this cluster; `group` may be two words."""
        where = ("-c", self.directory / "tool.yml")
        return run_tool(*group.split(), command, *where, *arguments)

    def done(self, group: str, command: str, *arguments: str | Path) -> Said:
        """As `tool`, for what has to succeed once store sessions are open."""
        where = ("-c", self.directory / "tool.yml")
        said = run_settled(*group.split(), command, *where, *arguments)
        assert said.code == 0, (command, said.out, said.err)
        return said

    def place_storage(self, name: str) -> StoragePlace:
        """Give a storage node its addresses and an empty directory."""
        data, admin = choose_ports("127.0.0.1", 0, 2)
        place = StoragePlace(name, f"127.0.0.1:{data}", f"127.0.0.1:{admin}", self.directory / name)
        place.directory.mkdir()
        self.storages[name] = place
        return place

    def add_storage(self, name: str, group: int) -> StoragePlace:
        """Place a storage node and make the cluster know it."""
        place = self.place_storage(name)
        port = place.admin.rpartition(":")[2]
        where = ("-s", place.address, "-a", port, "-g", str(group))
        self.done("cluster", "add-storage", *where)
        return place

    def start_storage(self, name: str) -> None:
        place = self.storages[name]
        self.run(
            name,
            *("storage", "--directory", str(place.directory), "--coordinator", self.coordinator),
            *("--address", place.address, "--admin-address", place.admin),
            *("--disk-free-min", "64MiB"),
        )

    def start_server(self, name: str) -> None:
        if name not in self.servers:
            self.servers[name] = f"127.0.0.1:{choose_ports('127.0.0.1', 0, 1)[0]}"
        self.run(name, "server", "--coordinator", self.coordinator, "--address", self.servers[name])

    def run(self, name: str, *arguments: str) -> None:
        """Start the command as the process `name`; return once it is ready."""
        with (self.directory / f"{name}.log").open("a") as log:
            process = start_node(*arguments, stdout=subprocess.PIPE, stderr=log)
        self.processes[name] = process
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", (self.directory / f"{name}.log").read_text()

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        process.communicate(timeout=60)

    def kill(self, name: str) -> None:
        self.end(name, signal.SIGKILL)

    def append(self, partition: int, *data: str) -> list[int]:
        said = run_tool(
            *("append", "--cluster", self.coordinator, "--partition", str(partition)), *data
        )
        assert said.code == 0, said.err
        return [int(line) for line in said.out.split()]

    def tail(self, partition: int) -> list[str]:
        said = run_tool(
            *("tail", "--cluster", self.coordinator, "--partition", str(partition)),
            *("--from", "earliest", "--no-follow"),
        )
        assert said.code == 0, said.err
        return [line.split("\t")[2] for line in said.out.splitlines()]

    def wait_until_left(self, name: str, partition: int) -> None:
        """Return once the partition's store session is one without the storage node."""
        node = self.storages[name].address

        def has_left() -> bool:
            found = self.done("cluster", "list", "--json").json["partitions"][partition]
            states = {each["replica_id"]: each["session_id"] for each in found["replicas"]}
            return bool(states.get(node) != found["session_id"])

        wait_until(has_left, f"the session of partition {partition} still counts on {name}")

    def wait_until_lost(self, name: str) -> None:
        """Return once a server knows that it cannot reach the storage node."""
        node = self.storages[name].address

        def is_lost() -> bool:
            found = self.tool("cluster", "check-connectivity", "--json").json
            return any((each["reaches"] or {}).get(node) is False for each in found.values())

        wait_until(is_lost, f"{name} is still reached")

    def wait_until_verified(self, otherwise: str) -> None:
        last: list[Said] = []

        def passes() -> bool:
            last[:] = [self.tool("cluster", "verify")]
            return last[0].code == 0

        try:
            wait_until(passes, otherwise)
        except AssertionError:
            raise AssertionError(f"{otherwise}:\n{last[0].out}{last[0].err}") from None


@contextmanager
def operated_cluster(directory: Path, zookeeper: RunningZooKeeper) -> Iterator[OperatedCluster]:
    directory.mkdir(parents=True, exist_ok=True)
    cluster = OperatedCluster(directory, str(zookeeper.address), f"/{directory.name}/waltz")
    (directory / "tool.yml").write_text(
        f"zookeeper: {{connectString: '{cluster.zookeeper}', sessionTimeout: 2000}}\n"
        f"cluster.root: {cluster.root}\n"
    )
    try:
        yield cluster
    finally:
        for process in cluster.processes.values():
            process.kill()
            process.communicate()
