"""Assembles the real doors of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from waltz.errors import LocalProtocolError
from waltz.host import ANY_VERSION, Coordinator, Host, Node
from waltz.limits import COORDINATOR_CALL_SECONDS_MAX, COORDINATOR_SESSION_SECONDS
from waltz.system.clock import RealClock
from waltz.system.embedded import EmbeddedCoordinator
from waltz.system.random import RealRandom
from waltz.system.real_disk import RealDisk
from waltz.system.tcp_network import NOT_CONFIGURED, RealNetwork
from waltz.system.workers import RealWorkers
from waltz.types import Address, CoordinatorAddress, TlsSettings, ZooKeeperAddress


def real_host(
    coordinator: CoordinatorAddress | None,
    tls: TlsSettings = NOT_CONFIGURED,
    *,
    connecting: TlsSettings | None = None,
    handshake_seconds: float | None = None,
    coordinator_seconds_max: float = COORDINATOR_CALL_SECONDS_MAX,
    local_paths: Mapping[Address, str] | None = None,
) -> Host:
    """Return the doors of this process; `coordinator` is the address of the cluster's metadata.

    With None every coordinator call raises LocalProtocolError. The caller must close
    `host.coordinator`. `tls` is for the ports of this process, and for its connections unless
    `connecting` is given. An accepted connection must be open within `handshake_seconds`; None:
    `limits.HANDSHAKE_SECONDS_MAX`. A call to a coordinator that cannot be reached waits for
    `coordinator_seconds_max`. `local_paths` has the sockets of this machine next to ports, by the
    addresses of these. Raises ConfigurationError: a file named by `tls`, or by the access to a
    ZooKeeper, cannot be used; the system has no such sockets.
    """
    network = RealNetwork(
        tls, connecting, handshake_seconds=handshake_seconds, local_paths=local_paths
    )
    return Host(
        clock=RealClock(),
        network=network,
        disk=RealDisk(),
        random=RealRandom(),
        workers=RealWorkers(),
        coordinator=_coordinator(coordinator, network, coordinator_seconds_max),
    )


def real_coordinator(
    address: CoordinatorAddress | None, tls: TlsSettings = NOT_CONFIGURED
) -> Coordinator:
    """Return another door to the coordinator, for a process that has closed its own; the caller
    must close it. Raises as `real_host`."""
    return _coordinator(address, RealNetwork(tls, None), COORDINATOR_CALL_SECONDS_MAX)


def _coordinator(
    address: CoordinatorAddress | None, network: RealNetwork, call_seconds_max: float
) -> Coordinator:
    if address is None:
        return NoCoordinator()
    if not isinstance(address, ZooKeeperAddress):
        return EmbeddedCoordinator(address, network, call_seconds_max=call_seconds_max)
    # Most processes of most tests need no kazoo.
    from waltz.system.zookeeper import ZooKeeperCoordinator

    milliseconds = address.session_milliseconds
    return ZooKeeperCoordinator(
        address.connect_string,
        session_seconds=COORDINATOR_SESSION_SECONDS
        if milliseconds is None
        else milliseconds / 1000,
        call_seconds_max=call_seconds_max,
        access=address.access,
    )


class NoCoordinator:
    """Implements `host.Coordinator` for a process that must not use one."""

    async def read(self, path: str) -> Node:
        _refuse(path)

    async def children(self, path: str) -> Sequence[str]:
        _refuse(path)

    async def create(
        self, path: str, data: bytes | None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        _refuse(path)

    async def write(self, path: str, data: bytes, *, version: int) -> int:
        _refuse(path)

    async def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        _refuse(path)

    async def changed(self, path: str, seen: Node | None) -> None:
        _refuse(path)

    async def close(self) -> None:
        """Nothing to end."""


def _refuse(path: str) -> NoReturn:
    raise LocalProtocolError(f"this process was given no coordinator and asked for its node {path}")
