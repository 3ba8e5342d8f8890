"""`waltz top`: a cluster on a terminal, followed about once a second."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from typing import Any, Final

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.nodes import run_loop
from waltz.console.asking_shell import SERVER_SECONDS_MAX, ClusterAsker
from waltz.console.picture import ClusterPicture
from waltz.console.poller_shell import ClusterPoller
from waltz.console.serving_shell import known_names

ONCE_SECONDS_MAX: Final = SERVER_SECONDS_MAX + 2.0
"""Seconds that a single picture waits for every process to answer, or not to."""


@click.command()
@cluster_options
@click.option("--once", is_flag=True, help="Print one picture, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one picture as JSON, and end.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="ADDRESS=NAME",
    help="A name to show for a server or storage node; may be repeated.",
)
def top(place: ClusterPlace, once: bool, as_json: bool, names: tuple[str, ...]) -> None:
    """Show a cluster as the console does, on the terminal, until Ctrl-C.

    Everything comes from the process that knows it; what could not be asked is shown as unknown.
    """
    run_loop(_follow(place, known_names(names), is_once=once or as_json, as_json=as_json))


async def _follow(place: ClusterPlace, names: Any, *, is_once: bool, as_json: bool) -> None:
    async with place.host() as host:
        poller = ClusterPoller(host.clock, ClusterAsker(host, place.root), names)
        try:
            if is_once:
                _print(await poller.look(ONCE_SECONDS_MAX), as_json=as_json)
            else:
                await _show(poller)
        finally:
            await poller.stop()


def _print(picture: ClusterPicture, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(picture_json(picture), indent=2))
        return
    from rich.console import Console

    from waltz.console.screen import screen

    console = Console(highlight=False)
    console.print(screen(picture, width=console.width))


def picture_json(picture: ClusterPicture) -> dict[str, Any]:
    """Return the picture as JSON; each partition with its sentence."""
    found = asdict(picture)
    for entry, partition in zip(found["partitions"], picture.partitions, strict=True):
        entry.pop("cause")
        entry |= {"sentence": partition.sentence, "current_replicas": partition.current_replicas}
    found.pop("names")
    return found


async def _show(poller: ClusterPoller) -> None:
    picture = await poller.look()
    from rich.console import Console, RenderableType
    from rich.live import Live

    from waltz.console.screen import screen

    console = Console(highlight=False)
    is_full = sys.stdout.isatty()

    def shown(picture: ClusterPicture) -> RenderableType:
        return screen(picture, console.height if is_full else None, width=console.width)

    with Live(shown(picture), console=console, screen=is_full, auto_refresh=False) as live:
        async with contextlib.aclosing(poller.pictures()) as pictures:
            async for found in pictures:
                live.update(shown(found), refresh=True)
