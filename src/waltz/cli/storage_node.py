"""`waltz storage`: one storage node, from its configuration to its end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from functools import partial
from uuid import UUID

import click

from waltz.access.policy_reading import read_policy
from waltz.cli.access_keys import (
    access_config,
    local_paths,
    policy_file,
    tell_of_open_sockets,
)
from waltz.cli.command_settings import given_options, print_settings, read_settings
from waltz.cli.log_format import (
    LOG_FORMAT_OPTION,
    LogFormat,
    ending_in_log,
    set_up_logging,
)
from waltz.cli.neighbours import refuse_to_be_missed
from waltz.cli.nodes import (
    ADDRESS,
    COORDINATOR,
    ObservedNode,
    Routes,
    check_http_access,
    installed_version,
    run_loop,
    until_told,
)
from waltz.cluster.cluster_shell import (
    latest_session,
    read_replica_assignments,
    read_store_params,
    register_storage_directory,
)
from waltz.cluster.kept_coordinator_shell import KeptCoordinator
from waltz.cluster.paths import root_at
from waltz.cluster.policy_node_shell import AskedPolicyNode
from waltz.configuration.coordinator_settings import COORDINATOR_ADDRESS, coordinator_address
from waltz.configuration.http_settings import http_access
from waltz.configuration.settings import Settings
from waltz.configuration.storage_settings import (
    ADMIN_BIND_ADDRESS,
    ADMIN_PORT,
    ADVERTISED_ADDRESS,
    BIND_ADDRESS,
    DIRECTORY,
    DISK_FREE_MIN,
    HANDSHAKE_TIMEOUT,
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
    is_on_loopback_unasked,
    storage_settings,
)
from waltz.configuration.tls_settings import tls_settings
from waltz.log_fields import Fields
from waltz.storage.directory.space import FREE_MINIMUM
from waltz.storage.storage_metrics import NodeState
from waltz.storage.storage_node_shell import StorageConfig, StorageNode
from waltz.system.real_disk import RealDisk, tell_of_open_files
from waltz.system.real_host import real_coordinator, real_host
from waltz.system.tls import Tls, tell_of_open_ports
from waltz.types import (
    PLAIN_HTTP,
    Address,
    CoordinatorAddress,
    HttpAccess,
    PartitionId,
    ReplicaId,
    SessionId,
)

log = logging.getLogger(__name__)


def observed(
    node: StorageNode, http_address: Address | None, access: HttpAccess = PLAIN_HTTP
) -> ObservedNode:
    def routes() -> Routes:
        from waltz.cli.probes import storage_routes

        return storage_routes(node.state, version=installed_version())

    return ObservedNode(node, http_address, routes, access)


def unfinished(state: NodeState) -> list[Fields]:
    """Return what a stop still waits for, a line per partition."""
    return [
        Fields(
            partition=partition.partition_id,
            queue_requests=partition.queue_requests,
            disk_call_seconds=round(partition.call_seconds, 1),
        )
        for partition in state.partitions
        if partition.queue_requests or partition.call_seconds
    ]


def node_paths(settings: Settings) -> Mapping[Address, str]:
    """Return the sockets next to the data port and the admin port. Raises ConfigurationError."""
    told = advertised_address(settings, socket.getfqdn())
    admin = admin_address(settings)
    return local_paths(
        settings, {data_address(settings): told, admin: Address(told.host, admin.port)}
    )


async def run_node(settings: Settings, *, assign_all: bool, end_with_stdin: bool) -> None:
    coordinator = coordinator_address(settings)
    tls = tls_settings(settings, TLS, listens=True)
    host = real_host(
        coordinator,
        tls,
        handshake_seconds=settings[HANDSHAKE_TIMEOUT],
        local_paths=node_paths(settings),
    )
    root = root_at(coordinator)
    replica_id = ReplicaId(str(advertised_address(settings, socket.getfqdn())))

    async def register(directory_id: UUID) -> None:
        await register_storage_directory(host.coordinator, replica_id, directory_id, root=root)
        await host.coordinator.close()  # further questions need no session

    kept = KeptCoordinator(lambda: real_coordinator(coordinator, tls))

    async def read_partition_count() -> int:
        return (await kept.ask(partial(read_store_params, root=root))).partition_count

    async def latest(partition_id: PartitionId) -> SessionId:
        return await kept.ask(partial(latest_session, partition_id=partition_id, root=root))

    tell_of_open_ports(tls, data_address(settings), admin_address(settings))
    tell_of_open_sockets(settings)
    tell_of_open_files(settings[DIRECTORY])
    try:
        params = await read_store_params(host.coordinator, root)
        if is_on_loopback_unasked(settings):
            bound = data_address(settings)
            await refuse_to_be_missed(host.coordinator, root, BIND_ADDRESS, TLS, bound)
        known = await read_replica_assignments(host.coordinator, root)
        if replica_id not in known:
            log.warning(
                "not_a_storage_node_of_the_cluster advertised=%s known=%s",
                replica_id, ",".join(sorted(known)),
            )  # fmt: skip
        assigned = frozenset(PartitionId(p) for p in range(params.partition_count))
        access = access_config(settings)
        config = StorageConfig(
            directory=settings[DIRECTORY],
            cluster_key=params.cluster_key,
            partition_count=params.partition_count,
            data_address=data_address(settings),
            admin_address=admin_address(settings),
            segment_bytes_threshold=settings[SEGMENT_THRESHOLD],
            segments_open_max=settings[SEGMENT_CACHE],
            handshake_seconds=settings[HANDSHAKE_TIMEOUT],
            assigned_partitions=assigned if assign_all else None,
            disk_free_minimum=settings.get(DISK_FREE_MIN) or FREE_MINIMUM,
            scrub_bytes_per_second=settings[SCRUB_RATE] if settings[SCRUB_ENABLED] else 0,
            scrub_interval_seconds=settings[SCRUB_INTERVAL],
            register=register,
            latest_session=latest,
            read_partition_count=read_partition_count,
            access=access,
            stored_policy=AskedPolicyNode(kept, root) if access.follows_coordinator else None,
        )
        node = StorageNode(host, config)
        await until_told(
            observed(node, http_address(settings), http_access(settings)),
            end_with_stdin=end_with_stdin,
            shutdown_seconds=settings[SHUTDOWN_TIMEOUT],
            unfinished=lambda: unfinished(node.state()),
        )
    finally:
        await kept.close()
        await host.coordinator.close()


@click.command(
    options_metavar="[OPTIONS]",
    epilog="Keys of the file: docs/operating/storage-configuration.md. SIGTERM stops the node.",
)
@click.argument("config_path", required=False)
@click.option("--directory", type=click.Path(), help="Directory of the records; must exist.")
@click.option("--coordinator", type=COORDINATOR, help="host:port or zookeeper://host:port/root.")
@click.option("--address", type=ADDRESS, help="Address for servers.")
@click.option("--admin-address", type=ADDRESS, help="Address for tools.")
@click.option("--http-address", type=ADDRESS, help="/health, /live, /metrics; default: no HTTP.")
@click.option("--advertised", type=ADDRESS, help="Address that the cluster knows, if it differs.")
@click.option("--segment-size-threshold", type=int, help="Size of a complete segment, in bytes.")
@click.option("--disk-free-min", help="Refuse appends with less free: 5%, 64MiB.")
@click.option("--tls-ca", type=click.Path(), help="Trusted CAs, PEM.")
@click.option("--tls-cert", type=click.Path(), help="Certificate of this process, PEM.")
@click.option("--tls-key", type=click.Path(), help="Key of the certificate, if in another file.")
@click.option("--assign-all", is_flag=True, help="Take every partition into a new directory.")
@LOG_FORMAT_OPTION
@click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends.")
@click.option("--check", is_flag=True, help="Check the configuration, print it, and end.")
def storage(
    config_path: str | None,
    directory: str | None,
    coordinator: CoordinatorAddress | None,
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
    log_format: LogFormat,
    end_with_stdin: bool,
    check: bool,
) -> None:
    """Run one storage node.

    CONFIG_PATH is a YAML file; each option overrides what it says. Without a file, --directory,
    --coordinator, --address and --admin-address are needed.
    """
    options = given_options(
        [
            ("--address", BIND_ADDRESS, PORT, address),
            ("--admin-address", ADMIN_BIND_ADDRESS, ADMIN_PORT, admin_address),
            ("--http-address", HTTP_BIND_ADDRESS, HTTP_PORT, http_address),
        ],
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
    )
    settings = read_settings(config_path, options, STORAGE_KEYS, storage_settings)
    if check:
        Tls(tls_settings(settings, TLS, listens=True))  # reads the files
        check_http_access(http_access(settings))
        node_paths(settings)
        access_config(settings)
        if (policy_path := policy_file(settings)) is not None:
            read_policy(RealDisk(), policy_path)
        print_settings(settings)
        return
    set_up_logging(log_format)
    for warning in settings.warnings:
        log.warning("configuration_doubtful reason=%s", warning)
    with ending_in_log(log_format):
        run_loop(run_node(settings, assign_all=assign_all, end_with_stdin=end_with_stdin))
