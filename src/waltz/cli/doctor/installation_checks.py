"""Checks of an installation: the files of its nodes, the coordinator that they name, Java."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from waltz.cli.command_settings import read_settings
from waltz.cli.doctor.certificate_checks import certificate_findings, utc_now
from waltz.cli.doctor.disk_checks import disk_findings
from waltz.cli.doctor.finding import Checked
from waltz.cli.doctor.port_checks import check_port
from waltz.cluster.cluster_shell import read_cluster_params
from waltz.cluster.paths import root_at
from waltz.configuration import server_settings as server
from waltz.configuration import storage_settings as storage
from waltz.configuration.coordinator_settings import coordinator_address
from waltz.configuration.keys import Key
from waltz.configuration.settings import Given, Settings
from waltz.configuration.tls_settings import tls_settings
from waltz.errors import ConfigurationError, NoNodeError, WaltzError
from waltz.recognition import ADMIN, HTTP, SERVER, STORAGE
from waltz.storage.directory.space import FREE_MINIMUM
from waltz.system.real_host import real_coordinator
from waltz.types import Address, CoordinatorAddress, TlsSettings


@dataclass(frozen=True, slots=True)
class NodeChecks:
    """A kind of node: its keys, and what they ask of the machine."""

    keys: Sequence[Key[Any]]
    judged: Callable[[Mapping[str, Given]], Settings]
    ports: Callable[[Settings], Sequence[tuple[str, Address | None, str]]]
    tls: Callable[[Settings], Sequence[TlsSettings | None]]
    towards_coordinator: Callable[[Settings], TlsSettings]


SERVER_NODE: Final = NodeChecks(
    server.SERVER_KEYS,
    server.server_settings,
    lambda settings: (
        ("clients", server.client_address(settings), SERVER),
        ("HTTP", server.http_address(settings), HTTP),
    ),
    lambda settings: (
        tls_settings(settings, server.TLS, listens=True),
        server.storage_tls(settings),
    ),
    lambda settings: (
        server.storage_tls(settings) or tls_settings(settings, server.TLS, listens=True)
    ),
)
STORAGE_NODE: Final = NodeChecks(
    storage.STORAGE_KEYS,
    storage.storage_settings,
    lambda settings: (
        ("data", storage.data_address(settings), STORAGE),
        ("admin", storage.admin_address(settings), ADMIN),
        ("HTTP", storage.http_address(settings), HTTP),
    ),
    lambda settings: (tls_settings(settings, storage.TLS, listens=True),),
    lambda settings: tls_settings(settings, storage.TLS, listens=True),
)


async def node_findings(path: str, kind: NodeChecks) -> AsyncIterator[Checked]:
    """Yield what is found of the node that the file at `path` is for."""
    try:
        settings = read_settings(path, {}, kind.keys, kind.judged)
    except ConfigurationError as error:
        remedy = "correct the file; docs/operating has the keys"
        yield Checked("configuration", path, False, "refused", str(error), remedy)
        return
    warned = f", with warnings: {'; '.join(settings.warnings)}" if settings.warnings else ""
    yield Checked("configuration", path, True, f"accepted{warned}")
    for name, address, expected in kind.ports(settings):
        if address is not None:
            yield await check_port(f"{path} {name}", address, expected)
    for tls in filter(None, kind.tls(settings)):
        for finding in certificate_findings(tls, utc_now()):
            yield finding
    if kind is STORAGE_NODE:
        minimum = settings.get(storage.DISK_FREE_MIN) or FREE_MINIMUM
        for finding in disk_findings(settings[storage.DIRECTORY], minimum):
            yield finding
    try:
        tls = kind.towards_coordinator(settings)
        yield await coordinator_finding(coordinator_address(settings), tls)
    except ConfigurationError:
        pass  # of TLS files that cannot be used, and have been reported


async def coordinator_finding(address: CoordinatorAddress, tls: TlsSettings) -> Checked:
    """Ask the coordinator for the cluster, and yield what it answered and how long that took.

    Raises ConfigurationError: the TLS files cannot be used.
    """
    subject = str(address)
    coordinator = real_coordinator(address, tls)
    began = time.monotonic()
    try:
        params = await read_cluster_params(coordinator, root_at(address))
    except NoNodeError:
        cause = "it answers, and has no cluster at this path"
        remedy = "create the cluster, or correct the path"
        return Checked("coordinator", subject, False, "no cluster", cause, remedy)
    except WaltzError as error:
        remedy = "is the coordinator up, and is the address right?"
        return Checked("coordinator", subject, False, "no answer", str(error), remedy)
    finally:
        await coordinator.close()
    took = time.monotonic() - began
    return Checked(
        "coordinator", subject, True, f"has cluster {params.name}, answered in {took * 1000:.0f} ms"
    )


def java_findings() -> Iterator[Checked]:
    """Yield whether Spark, and a Java for it, are there."""
    from waltz.spark.java import find_java, packaged_java

    remedy = "pip install 'waltz-log[spark]'"
    if find_spec("pyspark") is None:
        yield Checked("spark", "", False, "not installed", "there is no module pyspark", remedy)
    else:
        from importlib.metadata import version

        yield Checked("spark", "", True, version("pyspark"))
    try:
        java = find_java(os.environ, packaged=packaged_java())
    except ConfigurationError as error:
        yield Checked("java", "", False, "none that Spark can use", str(error), remedy)
    else:
        yield Checked("java", str(java.program), True, f"Java {java.version}")
