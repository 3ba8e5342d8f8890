"""`waltz storage`: one storage node, from its configuration to its end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from waltz.cli.nodes import ADDRESS, installed_version, run_loop, set_up_logging, until_told
from waltz.cluster.shell import (
    read_replica_assignments,
    read_store_params,
    register_storage_directory,
)
from waltz.configuration.settings import Given, Settings, read_yaml
from waltz.configuration.storage import (
    ADMIN_BIND_ADDRESS,
    ADMIN_PORT,
    ADVERTISED_ADDRESS,
    BIND_ADDRESS,
    COORDINATOR_ADDRESS,
    DIRECTORY,
    DISK_FREE_MIN,
    HTTP_BIND_ADDRESS,
    HTTP_PORT,
    PORT,
    SCRUB_ENABLED,
    SCRUB_INTERVAL,
    SCRUB_RATE,
    SEGMENT_CACHE,
    SEGMENT_THRESHOLD,
    SHUTDOWN_TIMEOUT,
    STORAGE_KEYS,
    TLS,
    admin_address,
    advertised_address,
    data_address,
    http_address,
    storage_settings,
)
from waltz.configuration.tls import tls_settings
from waltz.errors import ConfigurationError
from waltz.storage.metrics import NodeState
from waltz.storage.shell import StorageConfig, StorageNode
from waltz.storage.space import FREE_MINIMUM
from waltz.system.host import real_host
from waltz.system.tls import Tls
from waltz.types import Address, PartitionId, ReplicaId

if TYPE_CHECKING:
    from waltz.system.http import HttpServer

log = logging.getLogger(__name__)

ADDRESS_OPTIONS = (
    ("--address", BIND_ADDRESS, PORT),
    ("--admin-address", ADMIN_BIND_ADDRESS, ADMIN_PORT),
    ("--http-address", HTTP_BIND_ADDRESS, HTTP_PORT),
)
"""One option sets two keys."""


class StorageProcess:
    """A storage node and, where a port is configured, its HTTP."""

    def __init__(self, node: StorageNode, http_address: Address | None) -> None:
        self._node = node
        self._http_address = http_address
        self._http: HttpServer | None = None

    @property
    def http_address(self) -> Address:
        """Where HTTP is served, with the real port; only where it is."""
        assert self._http is not None
        return self._http.address

    async def start(self) -> None:
        """HTTP comes first: a node that takes long to open its partitions is seen to live."""
        if self._http_address is not None:
            # Not before there is a port: most tests, and `waltz up`, never need the libraries.
            from waltz.cli.probes import routes
            from waltz.system.http import HttpServer

            self._http = HttpServer(routes(self._node.state, version=installed_version()))
            await self._http.start(self._http_address)
            log.info("http_started address=%s", self._http.address)
        try:
            await self._node.start()
        except BaseException:
            await self._stop_http()
            raise

    async def run(self) -> None:
        await self._node.run()

    async def stop(self) -> None:
        """HTTP goes last: what a stop waits for can be asked until then."""
        await self._node.stop()
        await self._stop_http()

    async def _stop_http(self) -> None:
        if self._http is not None:
            await self._http.stop()

    def unfinished(self) -> Sequence[str]:
        return unfinished(self._node.state())


def unfinished(state: NodeState) -> list[str]:
    """What a stop still waits for, a line per partition."""
    return [
        f"partition={partition.partition_id} queue_requests={partition.queue_requests}"
        f" disk_call_seconds={partition.call_seconds:.1f}"
        for partition in state.partitions
        if partition.queue_requests or partition.call_seconds
    ]


def read_settings(path: str | None, options: dict[str, Given]) -> Settings:
    """Return what the file at `path` and the options over it make.

    Raises ConfigurationError; click.UsageError: without a file the options are too few.
    """
    given: dict[str, Given] = {}
    if path is not None:
        try:
            given = read_yaml(Path(path).read_text(encoding="utf-8"), path)
        except OSError as error:
            raise ConfigurationError(
                f"cannot read the configuration {path}: {error.strerror}"
            ) from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path} is no text in UTF-8: {error.reason}") from error
    else:
        missing = [key for key in STORAGE_KEYS if key.required and key.name not in options]
        if missing:
            names = dict.fromkeys(key.option for key in missing)
            raise click.UsageError(
                f"missing: {', '.join(names)}; or give a CONFIG_PATH with"
                f" {', '.join(key.name for key in missing)}",
                click.get_current_context(silent=True),
            )
    return storage_settings(given | options)


def given_options(
    addresses: dict[str, Address | None], values: dict[str, tuple[Any, object]]
) -> dict[str, Given]:
    """Return the options that were given as keys; `values` has the key and value of each."""
    given = {}
    for option, host_key, port_key in ADDRESS_OPTIONS:
        address = addresses[option]
        if address is not None:
            given[host_key.name] = Given(address.host, option)
            given[port_key.name] = Given(address.port, option)
    for option, (key, value) in values.items():
        if value is not None:
            given[key.name] = Given(value, option)
    return given


async def run_node(settings: Settings, *, assign_all: bool, end_with_stdin: bool) -> None:
    host = real_host(settings[COORDINATOR_ADDRESS], tls_settings(settings, TLS, listens=True))
    replica_id = ReplicaId(str(advertised_address(settings, socket.getfqdn())))

    async def register(directory_id: UUID) -> None:
        await register_storage_directory(host.coordinator, replica_id, directory_id)
        await host.coordinator.close()  # nothing more is asked of it

    try:
        params = await read_store_params(host.coordinator)
        known = await read_replica_assignments(host.coordinator)
        if replica_id not in known:
            log.warning(
                "not_a_storage_node_of_the_cluster advertised=%s known=%s",
                replica_id, ",".join(sorted(known)),
            )  # fmt: skip
        assigned = frozenset(PartitionId(p) for p in range(params.partition_count))
        config = StorageConfig(
            directory=settings[DIRECTORY],
            cluster_key=params.cluster_key,
            partition_count=params.partition_count,
            data_address=data_address(settings),
            admin_address=admin_address(settings),
            segment_bytes_threshold=settings[SEGMENT_THRESHOLD],
            segments_open_max=settings[SEGMENT_CACHE],
            assigned_partitions=assigned if assign_all else None,
            disk_free_minimum=settings.get(DISK_FREE_MIN) or FREE_MINIMUM,
            scrub_bytes_per_second=settings[SCRUB_RATE] if settings[SCRUB_ENABLED] else 0,
            scrub_interval_seconds=settings[SCRUB_INTERVAL],
            register=register,
        )
        process = StorageProcess(StorageNode(host, config), http_address(settings))
        await until_told(
            process,
            end_with_stdin=end_with_stdin,
            shutdown_seconds=settings[SHUTDOWN_TIMEOUT],
            unfinished=process.unfinished,
        )
    finally:
        await host.coordinator.close()


@click.command(
    options_metavar="[OPTIONS]",
    epilog="Keys of the file: docs/operating/storage-configuration.md. SIGTERM stops the node.",
)
@click.argument("config_path", required=False)
@click.option("--directory", type=click.Path(), help="Where the records lie; exists.")
@click.option("--coordinator", type=ADDRESS, help="The embedded coordinator.")
@click.option("--address", type=ADDRESS, help="Where servers connect.")
@click.option("--admin-address", type=ADDRESS, help="Where tools connect.")
@click.option("--http-address", type=ADDRESS, help="/health, /live, /metrics; default: no HTTP.")
@click.option("--advertised", type=ADDRESS, help="What the cluster knows it by, if another.")
@click.option("--segment-size-threshold", type=int, help="Bytes that complete a segment.")
@click.option("--disk-free-min", help="With less free appends are refused: 5%, 64MiB.")
@click.option("--tls-ca", type=click.Path(), help="Trusted CAs, PEM.")
@click.option("--tls-cert", type=click.Path(), help="Own certificate, PEM.")
@click.option("--tls-key", type=click.Path(), help="Its key, if in another file.")
@click.option("--assign-all", is_flag=True, help="Take every partition into a new directory.")
@click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends.")
@click.option("--check", is_flag=True, help="Judge the configuration, print it, and end.")
def storage(
    config_path: str | None,
    directory: str | None,
    coordinator: Address | None,
    address: Address | None,
    admin_address: Address | None,
    http_address: Address | None,
    advertised: Address | None,
    segment_size_threshold: int | None,
    disk_free_min: str | None,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    assign_all: bool,
    end_with_stdin: bool,
    check: bool,
) -> None:
    """Run one storage node.

    CONFIG_PATH is a YAML file; each option overrides what it says. Without a file, --directory,
    --coordinator, --address and --admin-address are needed.
    """
    settings = read_settings(
        config_path,
        given_options(
            {
                "--address": address,
                "--admin-address": admin_address,
                "--http-address": http_address,
            },
            {
                "--directory": (DIRECTORY, directory),
                "--coordinator": (COORDINATOR_ADDRESS, coordinator),
                "--advertised": (ADVERTISED_ADDRESS, advertised),
                "--segment-size-threshold": (SEGMENT_THRESHOLD, segment_size_threshold),
                "--disk-free-min": (DISK_FREE_MIN, disk_free_min),
                "--tls-ca": (TLS.authorities, tls_ca),
                "--tls-cert": (TLS.certificate, tls_cert),
                "--tls-key": (TLS.key, tls_key),
            },
        ),
    )
    if check:
        Tls(tls_settings(settings, TLS, listens=True))
        for warning in settings.warnings:
            click.echo(f"warning: {warning}", err=True)
        for line in settings.lines():
            click.echo(line)
        return
    set_up_logging()
    for warning in settings.warnings:
        log.warning("configuration %s", warning)
    run_loop(run_node(settings, assign_all=assign_all, end_with_stdin=end_with_stdin))
