"""Shared by processes of every kind: they run until told to stop, and report their state over
HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import click

from waltz.errors import ConfigurationError
from waltz.limits import SHUTDOWN_SECONDS_MAX
from waltz.types import (
    PLAIN_HTTP,
    Address,
    ClusterAddress,
    CoordinatorAddress,
    HttpAccess,
    parse_cluster,
    parse_coordinator,
)

if TYPE_CHECKING:
    from waltz.log_fields import Fields
    from waltz.system.http import Answering, HttpServer

log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
"""The signals that tell a process to stop."""


class NodeKind(Protocol):
    """The methods of every kind of process."""

    async def start(self) -> None: ...
    async def run(self) -> None: ...
    async def stop(self) -> None: ...


Routes: TypeAlias = "Mapping[str, Answering]"


class ObservedNode:
    """A node that also reports its state over HTTP, if a port is given."""

    def __init__(
        self,
        node: NodeKind,
        http_address: Address | None,
        routes: Callable[[], Routes],
        http_access: HttpAccess = PLAIN_HTTP,
    ) -> None:
        """`routes` is called only if there is a port: most tests, and `waltz up`, never need its
        libraries."""
        self._node = node
        self._http_address = http_address
        self._http_access = http_access
        self._routes = routes
        self._http: HttpServer | None = None

    @property
    def http_address(self) -> Address:
        """Return the address of the HTTP server, with the real port; only if there is one."""
        assert self._http is not None
        return self._http.address

    async def start(self) -> None:
        """Start HTTP first, so that a node with a long start is seen to live; then start the
        node."""
        if self._http_address is not None:
            from waltz.system.http import HttpServer

            self._http = HttpServer(self._routes(), access=self._http_access)
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
        """Stop HTTP last: until then it tells what the stop waits for."""
        await self._node.stop()
        await self._stop_http()

    async def _stop_http(self) -> None:
        if self._http is not None:
            await self._http.stop()


def check_http_access(access: HttpAccess) -> None:
    """Read the files of an HTTP port. Raises ConfigurationError: one of them cannot be used."""
    from waltz.system.tls import Tls
    from waltz.system.token_file import read_tokens

    if access.tls is not None:
        Tls(access.tls, judges_peers=False)
    if access.tokens is not None:
        read_tokens(access.tokens)


class AddressType(click.ParamType[Address]):
    """An option of the form host:port."""

    name = "host:port"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Address:
        try:
            return Address.parse(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


ADDRESS = AddressType()


class CoordinatorType(click.ParamType[CoordinatorAddress]):
    """An option that names a cluster's coordinator."""

    name = "host:port|zookeeper://..."

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> CoordinatorAddress:
        try:
            return parse_coordinator(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


COORDINATOR = CoordinatorType()


class ClusterType(click.ParamType[ClusterAddress]):
    """An option that names a cluster, by its servers or its coordinator."""

    name = "waltz://host:port,...|host:port|zookeeper://..."

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> ClusterAddress:
        try:
            return parse_cluster(value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


CLUSTER = ClusterType()


def installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("waltz-log")
    except PackageNotFoundError:
        return "not installed"


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on the fastest event loop available; signals end the process afterwards."""
    _fill_standard_descriptors()
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):  # not made for every platform
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_without_signal_handlers_left(main))


def _fill_standard_descriptors() -> None:
    """Open /dev/null as standard input, output and errors where these are closed.

    A socket or a file that was opened next would otherwise have the number 0, 1 or 2: libuv ends
    the process when it closes such a socket, and a library's complaints would go into the file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(opened, True)


async def _without_signal_handlers_left(main: Coroutine[Any, Any, T]) -> T:
    """Run `main`, then remove the signal handlers that `main` added and did not remove.

    A loop of uvloop that is closed with its handlers leaves them in place, and they do nothing:
    the process would ignore SIGINT and SIGTERM from then on.
    """
    try:
        return await main
    finally:
        if threading.current_thread() is threading.main_thread():  # no other one has handlers
            loop = asyncio.get_running_loop()
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)


async def until_told(
    node: NodeKind,
    *,
    end_with_stdin: bool,
    shutdown_seconds: float = SHUTDOWN_SECONDS_MAX,
    unfinished: Callable[[], Sequence[Fields]] = tuple,
) -> None:
    """Start `node`, print `ready` on standard output, and stop it on SIGTERM or SIGINT; a second
    signal ends the process at once.

    With `end_with_stdin` it also stops when standard input ends: the process that started it is
    gone. A stop that takes longer than `shutdown_seconds` ends the process with status 1, after the
    lines of `unfinished` were logged. Raises the error of the node, if it ended by itself.
    """
    from waltz.system.freed_memory import keep_freed_memory

    keep_freed_memory()
    # Imported modules stay for good: no collector has to look at them again.
    gc.collect()
    gc.freeze()
    told = _listen_for_the_end(end_with_stdin=end_with_stdin)
    starting = asyncio.create_task(node.start())
    running = asyncio.create_task(_run(node, starting))
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if running.done():
        await running
    stopping = asyncio.create_task(_stop(node, starting))
    done, _ = await asyncio.wait({stopping}, timeout=shutdown_seconds)
    if not done:
        # A thread that a disk holds up cannot be ended, and would keep the process from ending.
        found = unfinished()
        for work in found:
            log.error("stop_unfinished %s", work)
        if not found:
            log.error("stop_unfinished known_work=none")
        log.error("stop_took_too_long seconds=%g", shutdown_seconds)
        logging.shutdown()
        os._exit(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await stopping


def _listen_for_the_end(*, end_with_stdin: bool) -> asyncio.Event:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = 0

    def on_signal(number: int) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            signal.raise_signal(number)  # the signal came before the handlers below were set
        told.set()
        for handled in STOP_SIGNALS:
            loop.remove_signal_handler(handled)
            # The system's default handler works even when this loop does not turn any more.
            signal.signal(handled, signal.SIG_DFL)
        log.info("told_to_stop signal=%s", signal.Signals(number).name)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    if end_with_stdin:
        call_when_input_ends(told.set)
    return told


def call_when_input_ends(called: Callable[[], None]) -> None:
    """Have `called` run once standard input ends: the process that started this one is gone.

    Input that was closed, and a file or /dev/null, has no process at its other end: it has ended.
    """
    loop = asyncio.get_running_loop()
    if sys.stdin is None:
        loop.call_soon(called)
        return
    number = sys.stdin.fileno()

    def on_input() -> None:
        try:
            has_ended = not os.read(number, 4096)
        except BlockingIOError:
            return
        except OSError:  # a terminal, or a socket, whose other end is gone
            has_ended = True
        if has_ended:
            loop.remove_reader(number)
            called()

    try:
        loop.add_reader(number, on_input)
    except PermissionError:  # the system's word for input that nobody can wait for
        loop.call_soon(called)


async def _run(node: NodeKind, starting: asyncio.Task[None]) -> None:
    await starting
    click.echo("ready")
    await node.run()


async def _stop(node: NodeKind, starting: asyncio.Task[None]) -> None:
    """Stop the node, after its start is finished: half a start cannot be undone."""
    await starting
    await node.stop()
