"""`python -m tests.interop.original_machine DIRECTORY TREE`: the machine on which the Java original
ran, with our processes on it.

To be run in a network and a mount namespace of its own: there the machine is called `vm`, as it
was, and all its ports are free. Loads a tree of the original into a ZooKeeper, gives three storage
nodes copies of its storage directory, starts a server, reads everything, writes once more into each
partition, and prints what the log then is.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import waltz
from tests.cluster.golden import golden_tree
from tests.interop.nodes import running_node
from tests.wire.golden import DIRECTORY
from tests.zookeepers import running_zookeeper
from waltz.cluster.cluster_shell import (
    read_connection_metadata,
    read_partition_metadata,
    read_replica_assignments,
)
from waltz.system.real_host import real_host
from waltz.types import Address, PartitionId, ReplicaId, ZooKeeperAddress

ROOT: Final = "/waltz_cluster"
MACHINE: Final = "vm"
SERVER_PORT: Final = 47_210
PARTITIONS: Final = (0, 1)
WRITTEN: Final = b"written by another program"


def become_the_machine(directory: Path) -> None:
    """Have its name and its loopback address; nobody outside notices."""
    hosts = directory / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {MACHINE}\n")
    for command in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "--bind", str(hosts), "/etc/hosts"],
        ["ip", "link", "set", "lo", "up"],
    ):
        subprocess.run(command, check=True, capture_output=True)


async def load(place: ZooKeeperAddress, tree: str) -> dict[ReplicaId, int]:
    """Write the tree as its bytes are, but for what ended with its servers; return the storage
    nodes and their admin ports."""
    door = real_host(place).coordinator
    ephemeral = f"{ROOT}/serverDescriptors/"
    for path, node in sorted(golden_tree(tree).items()):
        if not path.startswith(ephemeral):
            await door.create(path, node.data)
    ports = await read_connection_metadata(door, ROOT)
    assert ports.keys() == (await read_replica_assignments(door, ROOT)).keys()
    await door.close()
    return dict(ports)


async def read_generations(place: ZooKeeperAddress) -> dict[int, int]:
    door = real_host(place).coordinator
    try:
        return {
            number: int((await read_partition_metadata(door, PartitionId(number), ROOT)).generation)
            for number in PARTITIONS
        }
    finally:
        await door.close()


def write_and_read(cluster: str) -> dict[int, list[str]]:
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for number in PARTITIONS:
            client.append(number, WRITTEN)
    with waltz.open_reader(cluster) as reader:
        return {
            number: [
                data.hex()
                for run in reader.read(number, 0, reader.high_water_mark(number) + 1)
                for data in run.data
            ]
            for number in PARTITIONS
        }


def main(directory: Path, tree: str) -> None:
    become_the_machine(directory)
    with ExitStack() as stack:
        zookeeper = stack.enter_context(running_zookeeper(directory / "zookeeper"))
        place = ZooKeeperAddress((zookeeper.address,), ROOT)
        replicas = asyncio.run(load(place, tree))
        for position, (replica_id, admin_port) in enumerate(sorted(replicas.items()), 1):
            name = f"storage-{position}"
            shutil.copytree(DIRECTORY / "storage-after-clients", directory / name)
            own = directory / f"{name}-log"
            own.mkdir()
            stack.enter_context(
                running_node(
                    own,
                    "storage",
                    *("--coordinator", str(place), "--directory", str(directory / name)),
                    *("--address", replica_id, "--admin-address", f"{MACHINE}:{admin_port}"),
                    *("--disk-free-min", "64MiB"),
                )
            )
        server = Address(MACHINE, SERVER_PORT)
        stack.enter_context(
            running_node(directory, "server", "--coordinator", str(place), "--address", str(server))
        )
        log = write_and_read(str(place))
        generations = asyncio.run(read_generations(place))
    print(json.dumps({"log": log, "generation": generations}))


if __name__ == "__main__":
    os.umask(0o022)
    main(Path(sys.argv[1]), sys.argv[2])
