"""The directory of `waltz up`: the identity of its cluster, the addresses of its processes.

    <directory>/
      cluster.json         this file's `ClusterFile`
      lock                 held by the running `waltz up`
      restoring.json       as cluster.json, while a restore has not yet kept its plan
      coordinator.json     the coordinator's tree, or
      zookeeper/           its ZooKeeper's configuration and data
      storage-1/ …         one storage directory per node
      logs/storage-1.log … what each process said
      tls/                 under `--tls`: its CA, with certificates for processes and for clients

Addresses are chosen once, when the directory is created: the cluster's metadata names storage nodes
by them.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from waltz.cluster.paths import DEFAULT_ROOT, root_at
from waltz.errors import ConfigurationError, DirectoryInUseError
from waltz.types import (
    EVERYWHERE,
    Address,
    CoordinatorAddress,
    TlsSettings,
    ZooKeeperAddress,
    parse_coordinator,
)

FILE_NAME = "cluster.json"
RESTORING_NAME = "restoring.json"
FORMAT_VERSION = 1
TLS_DIRECTORY = "tls"
CLIENT: Final = "client"
"""The name of the certificate for clients."""
STORAGE_NODES = 3
STORAGE_NAMES: Final = tuple(f"storage-{number}" for number in range(1, STORAGE_NODES + 1))
"""The names of the storage nodes, and of their directories."""
FREE_PORT_MIN = 10_000
FREE_PORT_MAX = 32_000
FREE_PORT_TRIALS_MAX = 100
OWN_SESSION_MILLISECONDS = 4000
"""Milliseconds of a session with a ZooKeeper of our own: after that a killed server's partitions
move."""


@dataclass(frozen=True, slots=True)
class StoragePlace:
    name: str
    address: Address
    admin_address: Address


@dataclass(frozen=True, slots=True)
class ServerPlace:
    name: str
    address: Address


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The fixed part of `cluster.json`: once the directory exists, only the number of partitions
    changes, when some are added."""

    name: str
    cluster_key: str
    partition_count: int
    coordinator: CoordinatorAddress
    storages: tuple[StoragePlace, ...]
    servers: tuple[ServerPlace, ...]
    runs_zookeeper: bool = False
    """Whether the ZooKeeper at `coordinator` is the cluster's own."""
    speaks_tls: bool = False
    """Whether its processes spoke TLS at the last start, which the next one does, too."""

    @property
    def root(self) -> str:
        """Return the cluster's path in the coordinator's tree."""
        return root_at(self.coordinator)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT_VERSION,
            "name": self.name,
            "cluster_key": self.cluster_key,
            "partition_count": self.partition_count,
            "coordinator": str(self.coordinator),
            "runs_zookeeper": self.runs_zookeeper,
            "tls": self.speaks_tls,
            "storages": [
                {"name": s.name, "address": str(s.address), "admin": str(s.admin_address)}
                for s in self.storages
            ],
            "servers": [{"name": s.name, "address": str(s.address)} for s in self.servers],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ClusterFile:
        """Return the cluster of a JSON value. Raises KeyError, TypeError, ConfigurationError: not
        such a value."""
        if value["format"] != FORMAT_VERSION:
            raise ConfigurationError(
                f"the file has format {value['format']}; this release reads format {FORMAT_VERSION}"
            )
        return cls(
            str(value["name"]),
            str(value["cluster_key"]),
            int(value["partition_count"]),
            parse_coordinator(value["coordinator"]),
            tuple(
                StoragePlace(s["name"], Address.parse(s["address"]), Address.parse(s["admin"]))
                for s in value["storages"]
            ),
            tuple(ServerPlace(s["name"], Address.parse(s["address"])) for s in value["servers"]),
            # A directory of an earlier release has no such entries.
            bool(value.get("runs_zookeeper", False)),
            bool(value.get("tls", False)),
        )


def read_cluster_file(directory: Path) -> ClusterFile:
    """Return the directory's cluster. Raises ConfigurationError: there is none, or it cannot be
    read."""
    return _read_file(directory, FILE_NAME)


def read_unfinished(directory: Path) -> ClusterFile | None:
    """Return the cluster whose restore into the directory was cut short before its `cluster.json`
    was there; None: there is none. Raises ConfigurationError: the file cannot be read."""
    if (directory / FILE_NAME).exists() or not (directory / RESTORING_NAME).exists():
        return None
    return _read_file(directory, RESTORING_NAME)


def _read_file(directory: Path, name: str) -> ClusterFile:
    path = directory / name
    try:
        return ClusterFile.from_json(json.loads(path.read_text()))
    except FileNotFoundError:
        raise ConfigurationError(
            f"{directory} holds no cluster: no {name} in it; `waltz up --directory"
            f" {directory}` creates one"
        ) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    except (KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise ConfigurationError(f"cannot read {path}: {error!r}") from error


def write_cluster_file(
    directory: Path, cluster: ClusterFile, *, ready: bool, processes: list[dict[str, Any]]
) -> None:
    """Replace `cluster.json` in one step: its fixed part, and what runs now."""
    _write_file(directory, FILE_NAME, cluster.to_json() | {"ready": ready, "processes": processes})


def write_unfinished(directory: Path, cluster: ClusterFile) -> None:
    """Note durably that a restore into the directory has begun, and its cluster's addresses."""
    _write_file(directory, RESTORING_NAME, cluster.to_json())


def _write_file(directory: Path, name: str, value: dict[str, Any]) -> None:
    from waltz.system.real_disk import owner_only

    temporary = directory / f"{name}.new"
    temporary.unlink(missing_ok=True)  # it would keep its mode
    with open(temporary, "x", opener=owner_only) as file:
        json.dump(value, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(directory / name)


def lock_directory(directory: Path) -> Callable[[], None]:
    """Take the directory for this process. Raises DirectoryInUseError."""
    from waltz.system.real_disk import FILE_MODE

    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DirectoryInUseError(
            f"{directory} is in use: another `waltz up` runs on it; stop that one first, or give"
            " this one another --directory"
        ) from None
    return lambda: os.close(descriptor)


def prepare_directory(directory: Path) -> bool:
    """Create the directory if it is missing; return whether it holds a cluster already.

    Raises ConfigurationError: not a directory, not writable, or something else's. Nothing in it is
    touched then.
    """
    from waltz.system.real_disk import DIRECTORY_MODE

    try:
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        names = {path.name for path in directory.iterdir()}
    except OSError as error:
        raise ConfigurationError(
            f"cannot use {directory} as a directory: {error.strerror}"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigurationError(f"cannot write to {directory}: permission denied")
    if FILE_NAME in names:
        return True
    if RESTORING_NAME in names:
        raise ConfigurationError(
            f"a restore into {directory} was cut short ({RESTORING_NAME} in it): run the same"
            " command again, or give another --directory"
        )
    foreign = names - {"lock", f"{FILE_NAME}.new", f"{RESTORING_NAME}.new"}
    foreign -= {name for name in STORAGE_NAMES if _is_empty_directory(directory / name)}
    if foreign:
        raise ConfigurationError(
            f"{directory} is not empty and holds no cluster (no {FILE_NAME}, but"
            f" {min(foreign)!r}); give an empty or new --directory"
        )
    return False


def _is_empty_directory(path: Path) -> bool:
    """Return whether it is a directory without anything in it, as a start leaves it that was cut
    short before the cluster was there."""
    try:
        return path.is_dir() and not path.is_symlink() and not any(path.iterdir())
    except OSError:
        return False


def trial_client_tls(directory: Path, cluster: ClusterFile) -> TlsSettings | None:
    """Return the TLS settings for clients of the cluster in `directory`; None if it runs without
    TLS."""
    return trial_tls(directory, CLIENT) if cluster.speaks_tls else None


def trial_tls(directory: Path, name: str) -> TlsSettings:
    """Return the TLS settings of a process with the certificate of that name."""
    tls = directory / TLS_DIRECTORY
    return TlsSettings(certificate=str(tls / f"{name}.pem"), authorities=str(tls / "ca.pem"))


def choose_ports(host: str, first: int, count: int) -> list[int]:
    """Return `count` ports from `first` on, or consecutive free ones if `first` is 0.

    Raises ConfigurationError: one of them is in use.
    """
    if first:
        for port in range(first, first + count):
            if (reason := _why_busy(host, port)) is not None:
                raise ConfigurationError(
                    f"cannot listen on {Address(host, port)}: {reason}; choose another --port"
                )
        return list(range(first, first + count))
    # Below the range that the system gives to outgoing connections: a port of ours must still be
    # free when its process is started again.
    for _ in range(FREE_PORT_TRIALS_MAX):
        first = FREE_PORT_MIN + secrets.randbelow(FREE_PORT_MAX - FREE_PORT_MIN - count)
        if all(_why_busy(host, port) is None for port in range(first, first + count)):
            return list(range(first, first + count))
    raise ConfigurationError(f"no {count} consecutive free ports on {host}; choose a --port")


def _why_busy(host: str, port: int) -> str | None:
    """Return why no process can listen there; None if the port is free."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            return str(error)
    return None


@dataclass(frozen=True, slots=True)
class CoordinatorWish:
    """The coordinator of a new cluster: the embedded one, unless an option names another."""

    runs_zookeeper: bool = False
    elsewhere: ZooKeeperAddress | None = None


EMBEDDED: Final = CoordinatorWish()


def plan_cluster(
    *,
    name: str,
    cluster_key: str,
    host: str,
    port: int,
    servers: int,
    partitions: int,
    wish: CoordinatorWish = EMBEDDED,
) -> ClusterFile:
    """Give every process of a new cluster its addresses, on consecutive ports from `port` on.

    Raises ConfigurationError: `host` is no address to connect to, or a port is in use.
    """
    if host in EVERYWHERE:
        raise ConfigurationError(
            f"--host {host} is not an address to connect to; give the address by which other"
            " machines reach this one: the cluster knows its processes by it"
        )
    ports = choose_ports(host, port, 1 + servers + 2 * STORAGE_NODES)
    first, *rest = (Address(host, number) for number in ports)
    coordinator: CoordinatorAddress = first
    if wish.elsewhere is not None:
        coordinator = wish.elsewhere
    elif wish.runs_zookeeper:
        coordinator = ZooKeeperAddress((first,), DEFAULT_ROOT, OWN_SESSION_MILLISECONDS)
    return ClusterFile(
        name,
        cluster_key,
        partitions,
        coordinator,
        tuple(
            StoragePlace(name, rest[servers + 2 * i], rest[servers + 2 * i + 1])
            for i, name in enumerate(STORAGE_NAMES)
        ),
        tuple(ServerPlace(f"server-{i + 1}", rest[i]) for i in range(servers)),
        wish.runs_zookeeper,
    )
