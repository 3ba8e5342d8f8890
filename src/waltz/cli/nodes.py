"""`waltz server` and `waltz storage`: one process each, run until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import click

from waltz.cluster.shell import read_store_params
from waltz.errors import ConfigurationError
from waltz.limits import SEGMENT_BYTES_THRESHOLD
from waltz.server.shell import Server, ServerConfig
from waltz.storage.shell import StorageConfig, StorageNode
from waltz.system.host import real_host
from waltz.types import Address, PartitionId

T = TypeVar("T")


class Node(Protocol):
    """What both kinds of process have in common."""

    async def start(self) -> None: ...
    async def run(self) -> None: ...
    async def stop(self) -> None: ...


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


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on the fastest event loop there is."""
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):  # not made for every platform
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


def set_up_logging() -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )


async def until_told(node: Node, *, end_with_stdin: bool) -> None:
    """Start `node`, say `ready` on standard output, and stop it on SIGTERM or SIGINT.

    With `end_with_stdin` it also stops when standard input ends: whoever started it is gone.
    Raises what ended the node, if it ended by itself.
    """
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    if end_with_stdin:

        def on_input() -> None:
            if not os.read(sys.stdin.fileno(), 4096):
                loop.remove_reader(sys.stdin)
                told.set()

        loop.add_reader(sys.stdin, on_input)
    await node.start()
    click.echo("ready")
    running = asyncio.create_task(node.run())
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if running.done():
        await running
    await node.stop()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--coordinator", type=ADDRESS, required=True, help="Where the coordinator is."
        ),
        click.option("--address", type=ADDRESS, required=True, help="Where to listen."),
        click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends."),
    ):
        command = option(command)
    return command


@click.command()
@node_options
@click.option("--directory", type=click.Path(file_okay=False), required=True, help="Its files.")
@click.option("--admin-address", type=ADDRESS, required=True, help="Where tools reach it.")
@click.option(
    "--segment-size-threshold",
    type=click.IntRange(min=1),
    default=SEGMENT_BYTES_THRESHOLD,
    show_default=True,
    help="Bytes above which a segment is complete.",
)
@click.option("--assign-all", is_flag=True, help="Take every partition into a new directory.")
def storage(
    coordinator: Address,
    address: Address,
    end_with_stdin: bool,
    directory: str,
    admin_address: Address,
    segment_size_threshold: int,
    assign_all: bool,
) -> None:
    """Run one storage node."""
    set_up_logging()

    async def main() -> None:
        host = real_host(coordinator)
        params = await read_store_params(host.coordinator)
        await host.coordinator.close()
        assigned = frozenset(PartitionId(p) for p in range(params.partition_count))
        config = StorageConfig(
            directory=directory,
            cluster_key=params.cluster_key,
            partition_count=params.partition_count,
            data_address=address,
            admin_address=admin_address,
            segment_bytes_threshold=segment_size_threshold,
            assigned_partitions=assigned if assign_all else None,
        )
        await until_told(StorageNode(host, config), end_with_stdin=end_with_stdin)

    run_loop(main())


@click.command()
@node_options
@click.option("--advertised", type=ADDRESS, help="Where clients reach it, if not --address.")
def server(
    coordinator: Address, address: Address, end_with_stdin: bool, advertised: Address | None
) -> None:
    """Run one server."""
    set_up_logging()

    async def main() -> None:
        host = real_host(coordinator)
        node = Server(host, ServerConfig(address=address, advertised=advertised))
        try:
            await until_told(node, end_with_stdin=end_with_stdin)
        finally:
            await host.coordinator.close()

    run_loop(main())
