"""The coordinator that `waltz up` looks after: the embedded one, a ZooKeeper of its own, or one
that runs elsewhere and is left alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from waltz.cli.trial_directory import ClusterFile
from waltz.spark.java import find_java, packaged_java
from waltz.system.embedded_server import EmbeddedCoordinatorServer
from waltz.system.zookeeper_process import ZooKeeperProcess, packaged_jars
from waltz.types import Address, TlsSettings, ZooKeeperAddress


class CoordinatorService(Protocol):
    async def start(self) -> None:
        """Return once the coordinator answers. Raises ConfigurationError."""
        ...

    async def run(self) -> None:
        """Return once it is stopped. Raises StorageError: the coordinator has failed."""
        ...

    async def stop(self) -> None: ...

    def processes(self) -> Sequence[dict[str, Any]]:
        """Return its entries for `cluster.json`."""
        ...


def coordinator_service(
    directory: Path,
    cluster: ClusterFile,
    *,
    log: Path,
    on_restart: Callable[[], None],
    tls: TlsSettings,
) -> CoordinatorService:
    """Return the coordinator to start; `tls` is for the embedded one: a ZooKeeper has its own.

    Raises ConfigurationError: no Java, or no ZooKeeper, here.
    """
    address = cluster.coordinator
    if not isinstance(address, ZooKeeperAddress):
        return EmbeddedService(directory / "coordinator.json", address, tls)
    if cluster.runs_zookeeper:
        return ZooKeeperService(directory / "zookeeper", address.servers[0], log, on_restart)
    return ElsewhereService()


def entry(name: str, pid: int, restarts: int) -> dict[str, Any]:
    return {"name": name, "role": "coordinator", "pid": pid, "restarts": restarts}


class EmbeddedService:
    """Implements `CoordinatorService` in this process."""

    def __init__(self, path: Path, address: Address, tls: TlsSettings) -> None:
        self._address = address
        self._server = EmbeddedCoordinatorServer(str(path), tls=tls)

    async def start(self) -> None:
        await self._server.start(self._address)

    async def run(self) -> None:
        await self._server.run()

    async def stop(self) -> None:
        await self._server.stop()

    def processes(self) -> Sequence[dict[str, Any]]:
        return [entry("coordinator", os.getpid(), 0)]


class ZooKeeperService:
    """Implements `CoordinatorService` with a Java process."""

    def __init__(
        self, directory: Path, address: Address, log: Path, on_restart: Callable[[], None]
    ) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self._process = ZooKeeperProcess(
            directory,
            address,
            java=find_java(os.environ, packaged=packaged_java(), purpose="ZooKeeper").program,
            jars=packaged_jars(),
            log=log,
            on_restart=on_restart,
        )

    async def start(self) -> None:
        await self._process.start()

    async def run(self) -> None:
        await self._process.run()

    async def stop(self) -> None:
        await self._process.stop()

    def processes(self) -> Sequence[dict[str, Any]]:
        pid = self._process.pid
        return [] if pid is None else [entry("zookeeper", pid, self._process.restarts)]


class ElsewhereService:
    """Implements `CoordinatorService` for a coordinator that runs elsewhere."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()

    async def start(self) -> None:
        """Do nothing: it runs already; whether it answers is seen when the cluster is written."""

    async def run(self) -> None:
        await self._stopped.wait()

    async def stop(self) -> None:
        self._stopped.set()

    def processes(self) -> Sequence[dict[str, Any]]:
        return []
