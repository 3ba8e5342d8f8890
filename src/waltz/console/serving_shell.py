"""`waltz console`: the pages of one cluster for browsers of this machine.

The libraries for pages are imported only once they are served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from waltz.cli.cluster_place import DEFAULT_DIRECTORY, ClusterPlace, cluster_options
from waltz.cli.http_options import http_options, refuse_unsafe_tokens
from waltz.cli.log_format import LOG_FORMAT_OPTION, LogFormat, set_up_logging
from waltz.cli.nodes import ADDRESS, run_loop, until_told
from waltz.cli.trial_directory import FILE_NAME, read_cluster_file
from waltz.console.admission import refused_address
from waltz.errors import ConfigurationError
from waltz.types import PLAIN_HTTP, Address, HttpAccess, is_local

if TYPE_CHECKING:
    from waltz.console.log_window_shell import ReaderWindow
    from waltz.console.poller_shell import ClusterPoller
    from waltz.console.web_shell import Console
    from waltz.host import Host
    from waltz.system.http import HttpServer

log = logging.getLogger(__name__)

DEFAULT_ADDRESS: Final = Address("127.0.0.1", 7180)

CONNECTIONS_MAX: Final = 512
"""Connections of browsers, of which each may keep six."""

PIPELINES_MAX: Final = 20
"""Definitions of pipelines; each is a process of its own when it is asked."""

REQUEST_SECONDS_MAX: Final = 60.0
"""Seconds of one request, longer than a stream of events."""


@click.command("console")
@cluster_options
@click.option(
    "--http",
    "address",
    type=ADDRESS,
    default=str(DEFAULT_ADDRESS),
    show_default=True,
    help="Address to serve at.",
)
@click.option("--any-address", is_flag=True, help="Serve at an address that other machines reach.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="ADDRESS=NAME",
    help="A name to show for a server or storage node; may be repeated.",
)
@click.option(
    "--lock-name",
    "lock_names",
    multiple=True,
    metavar="NAME",
    help="Name of locks, to show locks by name and number; may be repeated.",
)
@click.option(
    "--pipeline",
    "pipelines",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Definition of a pipeline whose target is shown; may be repeated.",
)
@http_options()
@LOG_FORMAT_OPTION
@click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends.")
def console(
    place: ClusterPlace,
    address: Address,
    any_address: bool,
    names: tuple[str, ...],
    lock_names: tuple[str, ...],
    pipelines: tuple[Path, ...],
    http_access: HttpAccess,
    log_format: LogFormat,
    end_with_stdin: bool,
) -> None:
    """Serve pages that show a cluster: who serves, who is away, and who waits for whom.

    The console reads, and changes nothing. It asks the cluster about once a second while somebody
    looks, however many look, and not at all while nobody does. Without --http-tokens it has no
    login, so that by default only this machine reaches it.
    """
    refuse_unsafe_tokens(address, http_access)
    has_login = http_access.tokens is not None
    if (refused := refused_address(address, is_wanted=any_address or has_login)) is not None:
        raise ConfigurationError(refused)
    set_up_logging(log_format)
    if not has_login and not is_local(address.host):
        log.warning("console_reached_by_all address=%s: who reaches it can read the log", address)
    if len(pipelines) > PIPELINES_MAX:
        raise click.UsageError(
            f"--pipeline is given {len(pipelines)} times; {PIPELINES_MAX} may be"
        )
    node = ConsoleNode(place, address, known_names(names), lock_names, pipelines, http_access)
    run_loop(until_told(node, end_with_stdin=end_with_stdin))


def known_names(given: tuple[str, ...]) -> Mapping[str, str]:
    """Return the names of addresses: those of the directory's cluster, overridden by those given.

    Raises click.UsageError: not of the form ADDRESS=NAME.
    """
    names: dict[str, str] = {}
    if (DEFAULT_DIRECTORY / FILE_NAME).exists():
        cluster = read_cluster_file(DEFAULT_DIRECTORY)
        names |= {str(each.address): each.name for each in cluster.storages}
        names |= {str(each.address): each.name for each in cluster.servers}
    for text in given:
        address, equals, name = text.partition("=")
        if not equals or not address or not name:
            raise click.UsageError(f"--name {text!r}; expected ADDRESS=NAME")
        names[address] = name
    return names


class ConsoleNode:
    """A console as a process that runs until it is told to stop."""

    def __init__(
        self,
        place: ClusterPlace,
        address: Address,
        names: Mapping[str, str],
        lock_names: tuple[str, ...] = (),
        pipelines: tuple[Path, ...] = (),
        http_access: HttpAccess = PLAIN_HTTP,
    ) -> None:
        self._http_access = http_access
        self._place = place
        self._lock_names = lock_names
        self._pipelines = pipelines
        self._address = address
        self._names = names
        self._host: Host | None = None
        self._poller: ClusterPoller | None = None
        self._window: ReaderWindow | None = None
        self._console: Console | None = None
        self._http: HttpServer | None = None

    async def start(self) -> None:
        """Begin to serve. Raises ConfigurationError: the port is in use, or a library is
        missing."""
        import waltz
        from waltz.console.asking_shell import ClusterAsker
        from waltz.console.inquiries_shell import Inquiries
        from waltz.console.inquiring_shell import ClusterInquirer
        from waltz.console.log_window_shell import READ_SECONDS_MAX, ReaderWindow
        from waltz.console.pipelines_shell import ask_pipelines
        from waltz.console.poller_shell import ClusterPoller
        from waltz.system.http import HttpBounds, HttpServer
        from waltz.system.real_host import real_host

        try:
            from waltz.console.web_shell import Console
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"{error.name} is missing: run `pip install 'waltz-log[console]'`"
            ) from error
        place = self._place
        self._host = real_host(
            place.coordinator, place.tls, coordinator_seconds_max=place.connect_seconds
        )
        self._poller = ClusterPoller(
            self._host.clock, ClusterAsker(self._host, place.root), self._names
        )
        self._window = ReaderWindow(
            lambda: waltz.open_async_reader(
                place.coordinator, timeout_seconds=READ_SECONDS_MAX, tls=place.tls
            )
        )
        inquirer = ClusterInquirer(
            self._host,
            place.root,
            self._window,
            self._poller.server_of,
            partial(ask_pipelines, self._pipelines),
        )
        inquiries = Inquiries(self._host.clock, inquirer.ask)
        self._console = Console(
            self._poller,
            self._window,
            inquiries,
            self._address.host if self._http_access.tls is None else None,
            self._lock_names,
        )
        self._http = HttpServer(
            self._console.application(),
            HttpBounds(CONNECTIONS_MAX, REQUEST_SECONDS_MAX),
            self._http_access,
        )
        await self._http.start(self._address)
        at, url = self._http.address, self._http.url
        log.info("console_started address=%s: open %s/ in a browser", at, url)

    async def run(self) -> None:
        """Wait for ever: the process ends when it is told to."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        if self._console is not None:
            await self._console.stop()
        if self._poller is not None:
            await self._poller.stop()
        if self._http is not None:
            await self._http.stop()
        if self._window is not None:
            await self._window.close()
        if self._host is not None:
            await self._host.coordinator.close()
