"""`waltz up`: a whole cluster on this machine, for trials, tests and small jobs.

This process runs the embedded coordinator, or looks after a ZooKeeper, and after one process per
storage node and server. A child that dies is started again, with growing pauses; when this process
ends, however it ends, the children end too, because their standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import click
from rich.console import Console
from rich.markup import escape

from waltz.cli.children import Child, Keeper
from waltz.cli.coordination import coordinator_service
from waltz.cli.log_format import LOG_FORMAT_OPTION, LogFormat, set_up_logging
from waltz.cli.nodes import COORDINATOR, STOP_SIGNALS, call_when_input_ends, run_loop
from waltz.cli.trial_certificates import trial_certificates
from waltz.cli.trial_directory import (
    EMBEDDED,
    TLS_DIRECTORY,
    ClusterFile,
    CoordinatorWish,
    choose_ports,
    lock_directory,
    plan_cluster,
    prepare_directory,
    read_cluster_file,
    write_cluster_file,
)
from waltz.cluster.cluster_shell import (
    StorageEntry,
    create_cluster,
    read_cluster_params,
    read_store_params,
)
from waltz.errors import ConfigurationError, NoNodeError
from waltz.system.real_host import real_host
from waltz.types import Address, CoordinatorAddress, TlsSettings, ZooKeeperAddress, is_local

DISK_FREE_BYTES_TRIAL: Final = 64 * 1024**2
"""Free disk space below which clusters of `waltz up` refuse appends: they run on people's own
machines."""


OPEN_TO_ANYONE: Final = "--open-to-anyone"
OPEN_TEXT: Final = "Let other machines reach ports that trust every peer."

CONSOLE: Final = "console"
"""The name and the role of the process that serves the cluster's pages."""

CONSOLE_HOST: Final = "127.0.0.1"
CONSOLE_PORT: Final = 7180
"""The port of the console; if it is in use, a free one."""

console = Console(stderr=True, highlight=False)


class Supervisor:
    """Starts the cluster's processes, keeps them running, and stops them in order."""

    def __init__(
        self,
        directory: Path,
        cluster: ClusterFile,
        tls: TlsSettings | None,
        log_format: LogFormat = LogFormat.TEXT,
        console_at: Address | None = None,
    ) -> None:
        """`tls` None: all processes speak plain TCP. `console_at` None: there is no console."""
        self._directory = directory
        self._cluster = cluster
        logs = directory / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        self._ready = False
        self.coordinator = coordinator_service(
            directory,
            cluster,
            log=logs / "zookeeper.log",
            on_restart=self._note_restart,
            tls=tls or TlsSettings(),
        )
        shared = ["--coordinator", str(cluster.coordinator)]
        if tls is not None:
            shared += ["--tls-ca", str(tls.authorities), "--tls-cert", str(tls.certificate)]
        self._storages = [
            Child(
                place.name,
                "storage",
                [
                    "storage",
                    *shared,
                    *("--address", str(place.address)),
                    *("--admin-address", str(place.admin_address)),
                    *("--directory", str(directory / place.name)),
                    *("--disk-free-min", str(DISK_FREE_BYTES_TRIAL)),
                    *("--log-format", log_format),
                    "--assign-all",
                ],
                logs / f"{place.name}.log",
            )
            for place in cluster.storages
        ]
        self._servers = [
            Child(
                place.name,
                "server",
                ["server", *shared, "--address", str(place.address), "--log-format", log_format],
                logs / f"{place.name}.log",
            )
            for place in cluster.servers
        ]
        self._keeper = Keeper(
            self._storages + self._servers,
            say=console.print,
            on_restart=self._note_processes,
        )
        self._console_at = console_at
        self._console_keeper = Keeper(
            []
            if console_at is None
            else [console_child(console_at, cluster, shared, logs, log_format)],
            say=console.print,
            on_restart=self._note_processes,
        )

    def note_partitions(self, count: int) -> None:
        """Take note of the number of partitions, as the coordinator has it: some may have been
        added."""
        self._cluster = replace(self._cluster, partition_count=count)

    def tell_to_stop(self) -> None:
        self._keeper.tell_to_stop()

    def note(self, *, ready: bool) -> None:
        """Bring `cluster.json` up to date."""
        self._ready = ready
        processes: list[dict[str, Any]] = list(self.coordinator.processes())
        for child in (*self._keeper.children, *self._console_keeper.children):
            if child.process is not None and child.process.returncode is None:
                entry = {
                    "name": child.name,
                    "role": child.role,
                    "pid": child.process.pid,
                    "restarts": child.restarts,
                }
                if child.role == CONSOLE:
                    entry["address"] = str(self._console_at)
                processes.append(entry)
        write_cluster_file(self._directory, self._cluster, ready=ready, processes=processes)

    def _note_restart(self) -> None:
        console.print("[yellow]ZooKeeper ended[/]; starting it again")
        self._note_processes()

    def _note_processes(self) -> None:
        """Take note of a process in the place of another: whether the cluster is ready is as it
        was, for a process may end before all others have started."""
        self.note(ready=self._ready)

    async def start(self) -> None:
        """Start all processes at once. Raises ConfigurationError with the last words of one that
        failed; the cluster does without a console that failed."""
        starting = asyncio.create_task(self._console_keeper.start())
        try:
            await self._keeper.start()
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        try:
            await starting
        except ConfigurationError as error:
            self._console_at = None
            console.print(f"[yellow]the cluster has no console[/]: {escape(str(error))}")
        self.note(ready=True)

    @property
    def console_at(self) -> Address | None:
        """Return the address of the console; None: there is none."""
        return self._console_at

    async def run(self) -> None:
        """Return once told to stop."""
        await self._keeper.run()

    async def stop(self) -> None:
        """Stop the console, servers, then storage nodes; the processes of a group at once."""
        await self._console_keeper.stop()
        await self._keeper.stop(self._servers, self._storages)
        self.note(ready=False)


def console_child(
    address: Address,
    cluster: ClusterFile,
    shared: Sequence[str],
    logs: Path,
    log_format: LogFormat,
) -> Child:
    """Return the process that serves the cluster's pages; it has the names of the directory."""
    places = [(each.address, each.name) for each in cluster.storages]
    places += [(each.address, each.name) for each in cluster.servers]
    names = [option for at, name in places for option in ("--name", f"{at}={name}")]
    place = [
        "--cluster",
        *shared[1:],
    ]  # what processes call the coordinator, tools call the cluster
    return Child(
        CONSOLE, CONSOLE,
        ["console", *place, "--http", str(address), *names, "--log-format", log_format],
        logs / "console.log",
    )  # fmt: skip


def choose_console_address(port: int) -> Address | None:
    """Return the address of the console, always this machine's own: at `port` if that is free; 0
    takes a free one. None: it cannot be served."""
    if find_spec("jinja2") is None:
        console.print("[yellow]the cluster has no console[/]: pip install 'waltz-log\\[console]'")
        return None
    try:
        return Address(CONSOLE_HOST, choose_ports(CONSOLE_HOST, port, 1)[0])
    except ConfigurationError:
        return Address(CONSOLE_HOST, choose_ports(CONSOLE_HOST, 0, 1)[0])


def open_layout(
    directory: Path,
    *,
    name: str,
    host: str,
    port: int,
    servers: int | None,
    partitions: int | None,
    wish: CoordinatorWish = EMBEDDED,
    tls: bool | None = None,
    is_open: bool = False,
) -> ClusterFile:
    """Return the directory's cluster, planned and created if there is none.

    `tls` None: as at the last start. Raises ConfigurationError: the directory's cluster was created
    with other numbers, or everybody would be believed, and it is not `is_open`. Only the
    coordinator knows the present number of partitions: `check_partitions`.
    """
    if not prepare_directory(directory):
        planned = plan_cluster(
            name=name,
            cluster_key=str(uuid4()),
            host=host,
            port=port,
            servers=servers or 1,
            partitions=partitions or 4,
            wish=wish,
        )
        planned = replace(planned, speaks_tls=bool(tls))
        refuse_open_ports(planned, is_open=is_open)
        # Once the file is there a missing storage directory is a loss, which no start repairs.
        for place in planned.storages:
            (directory / place.name).mkdir(mode=0o700, exist_ok=True)
        write_cluster_file(directory, planned, ready=False, processes=[])
        return planned
    cluster = read_cluster_file(directory)
    for option, wanted, found in (
        ("--servers", servers, len(cluster.servers)),
        ("--zookeeper", wish.runs_zookeeper or None, cluster.runs_zookeeper),
        ("--coordinator", wish.elsewhere, cluster.coordinator),
    ):
        if wanted is not None and wanted != found:
            raise ConfigurationError(
                f"{directory} was created with {option} {found}, not {wanted}; leave the option"
                " out, or give another --directory"
            )
    if tls is not None:
        cluster = replace(cluster, speaks_tls=tls)
    refuse_open_ports(cluster, is_open=is_open)
    return cluster


def check_partitions(directory: Path, wanted: int | None, found: int) -> None:
    """Raise ConfigurationError if the directory's cluster has another number of partitions."""
    if wanted is not None and wanted != found:
        more = f"; waltz cluster add-partitions --to {wanted} adds some" if wanted > found else ""
        raise ConfigurationError(
            f"the cluster in {directory} has {found} partitions, not {wanted}: leave --partitions"
            f" out, or give another --directory{more}"
        )


async def run_cluster(
    directory: Path,
    cluster: ClusterFile,
    tls: TlsSettings | None,
    *,
    end_with_stdin: bool,
    partitions: int | None = None,
    log_format: LogFormat = LogFormat.TEXT,
    console_at: Address | None = None,
) -> None:
    """Run the coordinator and all processes until told to stop; stop them whatever happens.

    Raises ConfigurationError with the last words of a process that failed, or because the number of
    partitions is not `partitions`.
    """
    supervisor = Supervisor(directory, cluster, tls, log_format, console_at)
    coordinator = supervisor.coordinator
    await coordinator.start()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, supervisor.tell_to_stop)
    if end_with_stdin:
        call_when_input_ends(supervisor.tell_to_stop)
    try:
        count = await describe_cluster(cluster, tls or TlsSettings())
        check_partitions(directory, partitions, count)
        supervisor.note_partitions(count)
        cluster = replace(cluster, partition_count=count)
        starting = asyncio.create_task(supervisor.start())
        # A coordinator ends by itself only if its disk fails: then the cluster has to stop.
        ending = [
            asyncio.create_task(supervisor.run()),
            asyncio.create_task(coordinator.run()),
        ]
        await asyncio.wait([starting, *ending], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            show_cluster(directory, cluster, console_at=supervisor.console_at)
            await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        told, coordinating = ending
        told.cancel()
        if coordinating.done():
            await coordinating
        console.print("stopping")
    finally:
        await supervisor.stop()
        await coordinator.stop()
    console.print("stopped")


async def describe_cluster(cluster: ClusterFile, tls: TlsSettings) -> int:
    """Write a new cluster's parameters and storage nodes into the coordinator; return the cluster's
    number of partitions.

    Raises ConfigurationError: the coordinator knows another cluster.
    """
    connection = real_host(cluster.coordinator, tls).coordinator
    try:
        with contextlib.suppress(NoNodeError):
            params = await read_store_params(connection, cluster.root)
            if str(params.cluster_key) != cluster.cluster_key:
                raise ConfigurationError(
                    f"the coordinator at {cluster.coordinator} holds cluster {params.cluster_key},"
                    f" not {cluster.cluster_key}"
                )
            return (await read_cluster_params(connection, cluster.root)).partition_count
        await create_cluster(
            connection,
            name=cluster.name,
            partition_count=cluster.partition_count,
            cluster_key=UUID(cluster.cluster_key),
            storages=[StorageEntry(s.address, s.admin_address) for s in cluster.storages],
            root=cluster.root,
        )
        return cluster.partition_count
    finally:
        await connection.close()


def refuse_open_ports(cluster: ClusterFile, *, is_open: bool) -> None:
    """Raise ConfigurationError if other machines reach a port that trusts every peer, unless that
    is wanted."""
    if not is_open and (lines := open_ports(cluster)):
        raise ConfigurationError("; ".join([*lines, f"if that is wanted, give {OPEN_TO_ANYONE}"]))


def open_ports(cluster: ClusterFile) -> list[str]:
    """Return a line for each port that other machines reach and that trusts every peer."""
    lines = []
    hosts = [place.address.host for place in cluster.storages]
    remedy = "create the cluster again with --host 127.0.0.1, where only this machine reaches it"
    if not cluster.speaks_tls and any(not is_local(host) for host in hosts):
        lines.append(
            "every process that reaches this machine may read, write and remove everything: give"
            f" --tls, or {remedy}"
        )
    coordinator = cluster.coordinator
    if cluster.runs_zookeeper and isinstance(coordinator, ZooKeeperAddress):
        lines += [
            f"the ZooKeeper at {server} authenticates no client, not even with --tls: {remedy}"
            for server in coordinator.servers
            if not is_local(server.host)
        ]
    return lines


def show_cluster(directory: Path, cluster: ClusterFile, *, console_at: Address | None) -> None:
    console.print(
        f"[bold]cluster {cluster.name}[/] is up: {cluster.partition_count} partitions,"
        f" {len(cluster.servers)} server(s), {len(cluster.storages)} storage nodes"
    )
    console.print(f"  clients connect to  {cluster.coordinator}")
    if console_at is not None:
        console.print(f"  console at          http://{console_at}/")
    console.print(f"  files and logs in   {directory}")
    console.print("  Ctrl-C stops all of it")
    if cluster.speaks_tls:
        tls = directory / TLS_DIRECTORY
        console.print(f"  clients show        --tls-ca {tls}/ca.pem --tls-cert {tls}/client.pem")
    for line in open_ports(cluster):
        console.print(f"  [bold red]{line}[/]")


@click.command()
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("waltz-data"),
    show_default=True,
    help="Directory of the cluster; created if it does not exist.",
)
@click.option("--servers", type=click.IntRange(1, 64), help="Number of servers (new: 1).")
@click.option("--partitions", type=click.IntRange(1, 4096), help="Number of partitions (new: 4).")
@click.option("--name", default="waltz", show_default=True, help="Name of a new cluster.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7100,
    show_default=True,
    help="First port of a new cluster, the coordinator's; 0 takes free ones.",
)
@click.option("--zookeeper", is_flag=True, help="New: run a ZooKeeper, from PySpark's jars.")
@click.option(
    "--coordinator",
    type=COORDINATOR,
    help="New: use the ZooKeeper at zookeeper://host:port/root.",
)
@click.option(
    "--tls/--no-tls",
    default=None,
    help="Speak TLS, but to a ZooKeeper, with a CA of the directory (new: no; else as before).",
)
@click.option(OPEN_TO_ANYONE, "is_open", is_flag=True, help=OPEN_TEXT)
@LOG_FORMAT_OPTION
@click.option(
    "--console/--no-console",
    "has_console",
    default=True,
    show_default=True,
    help="Serve pages that show the cluster.",
)
@click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends.")
def up(
    directory: Path,
    servers: int | None,
    partitions: int | None,
    name: str,
    host: str,
    port: int,
    zookeeper: bool,
    coordinator: CoordinatorAddress | None,
    tls: bool | None,
    is_open: bool,
    log_format: LogFormat,
    has_console: bool,
    end_with_stdin: bool,
) -> None:
    """Start a whole cluster on this machine, or start it again where it stopped.

    It consists of a coordinator, servers, and three storage nodes with a directory each. With --tls
    its clients need the directory's tls/ca.pem and tls/client.pem.
    --log-format is that of the logs in the directory, and of the coordinator's lines.
    """
    if zookeeper and coordinator is not None:
        raise click.UsageError(
            "--zookeeper and --coordinator exclude each other: the first runs a ZooKeeper, the"
            " second names one"
        )
    if coordinator is not None and not isinstance(coordinator, ZooKeeperAddress):
        raise click.UsageError("--coordinator of `waltz up` expects zookeeper://host:port/root")
    if log_format is LogFormat.JSON:
        set_up_logging(log_format)  # the coordinator's lines; others are in the directory
    directory = directory.absolute()
    prepare_directory(directory)
    unlock = lock_directory(directory)
    try:
        cluster = open_layout(
            directory,
            name=name,
            host=host,
            port=port,
            servers=servers,
            partitions=partitions,
            wish=CoordinatorWish(zookeeper, coordinator),
            tls=tls,
            is_open=is_open,
        )
        settings = (
            trial_certificates(directory, cluster, now=datetime.now(UTC))
            if cluster.speaks_tls
            else None
        )
        run_loop(
            run_cluster(
                directory,
                cluster,
                settings,
                end_with_stdin=end_with_stdin,
                partitions=partitions,
                log_format=log_format,
                console_at=choose_console_address(CONSOLE_PORT if port else 0)
                if has_console
                else None,
            )
        )
    finally:
        unlock()
