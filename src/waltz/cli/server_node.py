"""`waltz server`: one server, from its configuration to its end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence

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
from waltz.cli.server_workers import ServerWorkers, run_workers
from waltz.cluster.paths import root_at
from waltz.configuration.coordinator_settings import COORDINATOR_ADDRESS, coordinator_address
from waltz.configuration.http_settings import http_access
from waltz.configuration.server_settings import (
    ADVERTISED_ADDRESS,
    BIND_ADDRESS,
    CHECKPOINT_INTERVAL,
    FEED_CACHE_SIZE,
    HANDSHAKE_TIMEOUT,
    HTTP_BIND_ADDRESS,
    HTTP_PORT,
    IDLE_TIMEOUT,
    LOCK_TABLE_SIZE,
    MIN_FETCH_SIZE,
    PORT,
    PREFERRED_PARTITIONS,
    RESTORE_TIMEOUT,
    SERVER_KEYS,
    SHUTDOWN_TIMEOUT,
    TLS,
    advertised_address,
    client_address,
    client_tls,
    http_address,
    is_on_loopback_unasked,
    server_settings,
    storage_tls,
)
from waltz.configuration.settings import Settings
from waltz.configuration.tls_settings import tls_settings
from waltz.host import Host
from waltz.log_fields import Fields
from waltz.server.server_metrics import ServerState
from waltz.server.server_shell import Server, ServerConfig
from waltz.system.real_disk import RealDisk
from waltz.system.real_host import real_host
from waltz.system.tls import Tls, tell_of_open_ports
from waltz.types import PLAIN_HTTP, Address, CoordinatorAddress, HttpAccess, is_local

log = logging.getLogger(__name__)


def server_config(settings: Settings, machine_name: str) -> ServerConfig:
    return ServerConfig(
        address=client_address(settings),
        advertised=advertised_address(settings, machine_name),
        preferred_partitions=settings.get(PREFERRED_PARTITIONS) or (),
        feed_cache_bytes=settings[FEED_CACHE_SIZE],
        feed_fetch_min=settings[MIN_FETCH_SIZE],
        restore_seconds=settings[RESTORE_TIMEOUT],
        idle_seconds=settings[IDLE_TIMEOUT],
        handshake_seconds=settings[HANDSHAKE_TIMEOUT],
        access=access_config(settings, has_authorities=settings.is_set(TLS.authorities)),
        lock_table_slots=settings[LOCK_TABLE_SIZE],
        checkpoint_transactions=settings[CHECKPOINT_INTERVAL],
        root=root_at(coordinator_address(settings)),
        coordinator_location=str(coordinator_address(settings)),
    )


def observed(server: Server, http: Address | None, access: HttpAccess = PLAIN_HTTP) -> ObservedNode:
    def routes() -> Routes:
        from waltz.cli.probes import server_routes

        return server_routes(server.state, server.consumers, version=installed_version())

    return ObservedNode(server, http, routes, access)


def unfinished(state: ServerState) -> list[Fields]:
    """Return what a stop still waits for, a line per partition."""
    return [
        Fields(
            partition=partition.partition_id,
            pending_requests=partition.pending_requests,
            pending_bytes=partition.pending_bytes,
        )
        for partition in state.partitions
        if partition.pending_requests
    ]


def server_host(settings: Settings) -> Host:
    return real_host(
        coordinator_address(settings),
        client_tls(settings),
        connecting=storage_tls(settings),
        handshake_seconds=settings[HANDSHAKE_TIMEOUT],
        local_paths=server_paths(settings),
    )


def server_paths(settings: Settings) -> Mapping[Address, str]:
    """Return the socket next to the clients' port. Raises ConfigurationError."""
    bound = client_address(settings)
    return local_paths(settings, {bound: advertised_address(settings, socket.getfqdn())})


async def check_neighbours(settings: Settings, host: Host) -> None:
    """Raise ConfigurationError if other nodes would not reach a server on loopback."""
    if is_on_loopback_unasked(settings):
        root = root_at(coordinator_address(settings))
        bound = client_address(settings)
        await refuse_to_be_missed(host.coordinator, root, BIND_ADDRESS, TLS, bound)


async def run_server(settings: Settings, *, end_with_stdin: bool) -> None:
    host = server_host(settings)
    config = server_config(settings, socket.getfqdn())
    tell_of_open_ports(tls_settings(settings, TLS, listens=True), config.address)
    tell_of_open_sockets(settings)
    assert config.advertised is not None
    log.info("server_addresses bound=%s advertised=%s", config.address, config.advertised)
    if is_local(config.advertised.host) and not is_local(config.address.host):
        log.warning(
            "advertised_is_loopback advertised=%s: clients on other machines cannot connect",
            config.advertised,
        )
    server = Server(host, config)
    try:
        await check_neighbours(settings, host)
        await until_told(
            observed(server, http_address(settings), http_access(settings)),
            end_with_stdin=end_with_stdin,
            shutdown_seconds=settings[SHUTDOWN_TIMEOUT],
            unfinished=lambda: unfinished(server.state()),
        )
    finally:
        await host.coordinator.close()


async def run_servers(
    settings: Settings, arguments: Sequence[str], count: int, *, end_with_stdin: bool
) -> None:
    """Run `count` servers, one process each; `arguments` are those that they share."""
    host = server_host(settings)
    try:
        # A worker gets its address as an option, and would not check.
        await check_neighbours(settings, host)
    finally:
        await host.coordinator.close()
    await run_workers(settings, arguments, count, end_with_stdin=end_with_stdin)


@click.command(
    options_metavar="[OPTIONS]",
    epilog="Keys of the file: docs/operating/server-configuration.md. SIGTERM stops the server.",
)
@click.argument("config_path", required=False)
@click.option("--coordinator", type=COORDINATOR, help="host:port or zookeeper://host:port/root.")
@click.option("--address", type=ADDRESS, help="Address for clients.")
@click.option("--http-address", type=ADDRESS, help="/health, /live, /metrics; default: no HTTP.")
@click.option("--advertised", type=ADDRESS, help="Address that clients are told, if it differs.")
@click.option("--tls-ca", type=click.Path(), help="Trusted CAs, PEM.")
@click.option("--tls-cert", type=click.Path(), help="Certificate of this process, PEM.")
@click.option("--tls-key", type=click.Path(), help="Key of the certificate, if in another file.")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    help="Number of servers, one process each, on the ports from --address on.",
)
@LOG_FORMAT_OPTION
@click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends.")
@click.option("--check", is_flag=True, help="Check the configuration, print it, and end.")
def server(
    config_path: str | None,
    coordinator: CoordinatorAddress | None,
    address: Address | None,
    http_address: Address | None,
    advertised: Address | None,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    workers: int,
    log_format: LogFormat,
    end_with_stdin: bool,
    check: bool,
) -> None:
    """Run one server, or several.

    CONFIG_PATH is a YAML file; each option overrides what it says. Without a file, --coordinator
    and --address are needed.
    """
    options = given_options(
        [
            ("--address", BIND_ADDRESS, PORT, address),
            ("--http-address", HTTP_BIND_ADDRESS, HTTP_PORT, http_address),
        ],
        {
            "--coordinator": (COORDINATOR_ADDRESS, coordinator),
            "--advertised": (ADVERTISED_ADDRESS, advertised),
            "--tls-ca": (TLS.authorities, tls_ca),
            "--tls-cert": (TLS.certificate, tls_cert),
            "--tls-key": (TLS.key, tls_key),
        },
    )
    settings = read_settings(config_path, options, SERVER_KEYS, server_settings)
    if check:
        Tls(client_tls(settings))  # reads the files
        check_http_access(http_access(settings))
        if (towards_storages := storage_tls(settings)) is not None:
            Tls(towards_storages)
        access_config(settings)  # reads the file of tokens
        server_paths(settings)
        if (policy_path := policy_file(settings)) is not None:
            read_policy(RealDisk(), policy_path)
        if workers > 1:
            ServerWorkers(settings, [], workers)  # judges, and starts nothing
        print_settings(settings)
        return
    set_up_logging(log_format)
    for warning in settings.warnings:
        log.warning("configuration_doubtful reason=%s", warning)
    if workers == 1:
        with ending_in_log(log_format):
            run_loop(run_server(settings, end_with_stdin=end_with_stdin))
        return
    shared = {
        "--coordinator": coordinator,
        "--tls-ca": tls_ca,
        "--tls-cert": tls_cert,
        "--tls-key": tls_key,
        "--log-format": log_format,
    }
    arguments = [] if config_path is None else [config_path]
    for option, value in shared.items():
        arguments += [] if value is None else [option, str(value)]
    with ending_in_log(log_format):
        run_loop(run_servers(settings, arguments, workers, end_with_stdin=end_with_stdin))
