"""The cluster that a command is for, from its options, a file, the environment, or a directory.

Owns the order in which these count. Every command that talks to a running cluster takes them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import click

from waltz.cli.nodes import CLUSTER, run_loop
from waltz.cli.tls_options import tls_options
from waltz.cli.trial_directory import FILE_NAME, read_cluster_file, trial_client_tls
from waltz.cluster.paths import root_at
from waltz.errors import ConfigurationError
from waltz.host import Host
from waltz.limits import COORDINATOR_CALL_SECONDS_MAX
from waltz.system.real_host import real_coordinator, real_host
from waltz.types import (
    ZOOKEEPER_SCHEME,
    ClusterAddress,
    CoordinatorAddress,
    ServersAddress,
    TlsSettings,
    ZooKeeperAddress,
    parse_cluster,
)

T = TypeVar("T")

DEFAULT_DIRECTORY: Final = Path("waltz-data")
ENVIRONMENT: Final = "WALTZ_CLUSTER"
CLUSTER_OPTION: Final = "--cluster"
ADDRESSES: Final = (
    "waltz://host:port,host:port for servers; host:port or zookeeper://... for the coordinator"
)


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """The coordinator of a cluster, and how its processes are reached."""

    coordinator: CoordinatorAddress
    tls: TlsSettings
    connect_seconds: float = COORDINATOR_CALL_SECONDS_MAX

    @property
    def root(self) -> str:
        return root_at(self.coordinator)

    @asynccontextmanager
    async def host(self) -> AsyncIterator[Host]:
        """Yield the doors to the cluster; the coordinator's session ends with the block."""
        host = real_host(self.coordinator, self.tls, coordinator_seconds_max=self.connect_seconds)
        try:
            yield host
        finally:
            await host.coordinator.close()

    def run(self, work: Callable[[Host, str], Awaitable[T]]) -> T:
        """Run `work` on a loop of its own; it gets the doors and the cluster's root."""

        async def main() -> T:
            async with self.host() as host:
                return await work(host, self.root)

        return run_loop(main())


class ZooKeeperType(click.ParamType[ZooKeeperAddress]):
    """An option of the form host:port,host:port/root."""

    name = "host:port/root"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> ZooKeeperAddress:
        prefix = f"{ZOOKEEPER_SCHEME}://"
        try:
            return ZooKeeperAddress.parse(prefix + value.removeprefix(prefix))
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The address of a cluster for commands that need only its log, and how its processes are
    reached."""

    cluster: ClusterAddress
    tls: TlsSettings

    def with_coordinator(self) -> ClusterPlace:
        """Return the cluster with its coordinator.

        Raises UnavailableError: no server names the coordinator; and as `find_coordinator`.
        """
        if not isinstance(self.cluster, ServersAddress):
            return ClusterPlace(self.cluster, self.tls)
        # Servers are asked for the coordinator only if the user named servers.
        from waltz.operators.questions_shell import find_coordinator

        found = find_coordinator(
            real_host(None, self.tls),
            self.cluster,
            lambda address: real_coordinator(address, self.tls),
        )
        return ClusterPlace(run_loop(found), self.tls)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; `command` gets `place`, a ClusterPlace. Servers, if named, are asked for the
    coordinator."""

    def with_coordinator(*, find: FindPlace, **others: Any) -> Any:
        place = find()
        if isinstance(place, LogPlace):
            place = place.with_coordinator()
        return command(place=place, **others)

    return _with_options(wraps(command)(with_coordinator), ADDRESSES)


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, which may name servers, too; `command` gets `place`, a LogPlace."""

    def with_log(*, find: FindPlace, **others: Any) -> Any:
        return command(place=_log_of(find()), **others)

    return _with_options(wraps(command)(with_log), ADDRESSES)


def log_options_on_demand(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for a command that needs the log only sometimes: it gets `find_place`, which
    returns a LogPlace, and raises as `find_cluster`."""

    def with_log(*, find: FindPlace, **others: Any) -> Any:
        return command(find_place=lambda: _log_of(find()), **others)

    return _with_options(wraps(command)(with_log), ADDRESSES)


def _log_of(place: ClusterPlace | LogPlace) -> LogPlace:
    return LogPlace(place.coordinator, place.tls) if isinstance(place, ClusterPlace) else place


FindPlace: TypeAlias = Callable[[], ClusterPlace | LogPlace]


def _with_options(command: Callable[..., Any], addresses: str) -> Callable[..., Any]:
    """Add the options; `command` gets `find`, which returns a ClusterPlace, or a LogPlace if
    servers are named."""

    @wraps(command)
    def with_place(
        *,
        cluster: ClusterAddress | None,
        zookeeper: ZooKeeperAddress | None,
        cli_config_path: str | None,
        tls: TlsSettings,
        **others: Any,
    ) -> Any:
        given = [each for each in (cluster, zookeeper, cli_config_path) if each is not None]
        if len(given) > 1:
            raise click.UsageError(f"{CLUSTER_OPTION}, --zookeeper and -c exclude each other")

        def find() -> ClusterPlace | LogPlace:
            if cli_config_path is not None:
                return place_in_file(cli_config_path, tls)
            return find_cluster(cluster or zookeeper, tls)

        return command(find=find, **others)

    decorated: Callable[..., Any] = tls_options(with_place)
    for names, kind, text in (
        (
            ("-c", "--cli-config-path"),
            click.Path(),
            "YAML: zookeeper.connectString, cluster.root, ssl.*.",
        ),
        (("--zookeeper",), ZooKeeperType(), "The cluster's place in a ZooKeeper."),
        (
            (CLUSTER_OPTION,),
            CLUSTER,
            f"{addresses}; default: ${ENVIRONMENT}, ./{DEFAULT_DIRECTORY}.",
        ),
    ):
        decorated = click.option(*names, type=kind, help=text)(decorated)
    return decorated


def find_cluster(given: ClusterAddress | None, tls: TlsSettings) -> ClusterPlace | LogPlace:
    """Return `given`, else the cluster of the environment, else the one of the directory here.

    Raises ConfigurationError: none given, none found. click.UsageError: the environment has no
    address.
    """
    if given is None and (text := os.environ.get(ENVIRONMENT)):
        try:
            given = parse_cluster(text)
        except ConfigurationError as error:
            raise click.UsageError(f"{ENVIRONMENT}: {error}") from error
    if isinstance(given, ServersAddress):
        return LogPlace(given, tls)
    if given is not None:
        return ClusterPlace(given, tls)
    if (DEFAULT_DIRECTORY / FILE_NAME).exists():
        cluster = read_cluster_file(DEFAULT_DIRECTORY)
        found = None if tls.files else trial_client_tls(DEFAULT_DIRECTORY, cluster)
        return ClusterPlace(cluster.coordinator, _with_sockets_of(tls, found or tls))
    raise ConfigurationError(
        f"no cluster given: pass {CLUSTER_OPTION} host:port, --zookeeper host:port/root or -c FILE,"
        f" set {ENVIRONMENT}, or run in the directory that holds {DEFAULT_DIRECTORY}"
    )


def _with_sockets_of(given: TlsSettings, found: TlsSettings) -> TlsSettings:
    """Return `found` with the directory of local sockets that an option has given."""
    return replace(found, local_sockets=given.local_sockets)


def place_in_file(path: str, tls: TlsSettings) -> ClusterPlace:
    """Return the cluster that a file names. Raises ConfigurationError with every fault of the
    file."""
    # Most calls name no file, and need none of its possible keys.
    from waltz.cli.command_settings import read_settings
    from waltz.configuration.coordinator_settings import coordinator_address
    from waltz.configuration.tls_settings import tls_settings
    from waltz.configuration.tools_settings import CONNECT_TIMEOUT, TLS, TOOL_KEYS, tool_settings

    settings = read_settings(path, {}, TOOL_KEYS, tool_settings)
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    return ClusterPlace(
        coordinator_address(settings),
        tls if tls.files else _with_sockets_of(tls, tls_settings(settings, TLS, listens=False)),
        settings[CONNECT_TIMEOUT] / 1000,
    )
