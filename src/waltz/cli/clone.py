"""`waltz clone`: a cluster on this machine with the content of an archive, and a key of its own."""

from __future__ import annotations

from pathlib import Path

import click

from waltz.cli.restore_cluster import START_OVER, show_restored
from waltz.cli.restore_points import PointWish, point_options
from waltz.cli.restore_trial import FIRST_PORT, restore_trial
from waltz.cli.up import OPEN_TEXT, OPEN_TO_ANYONE, up
from waltz.errors import ConfigurationError
from waltz.types import is_local


@click.command()
@click.argument("archive")
@point_options
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("waltz-data-clone"),
    show_default=True,
    help="Directory of the clone, empty or new.",
)
@click.option("--name", help="Name of the clone; default: that of the archived cluster.")
@click.option("--tls/--no-tls", default=None, help="Start it with TLS, and a CA of its own.")
@click.option(OPEN_TO_ANYONE, "is_open", is_flag=True, help=OPEN_TEXT)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=FIRST_PORT,
    show_default=True,
    help="First port, the coordinator's; 0 takes free ones.",
)
@click.option("--start-over", is_flag=True, help=START_OVER)
@click.option("--start/--no-start", default=True, show_default=True, help="Run `waltz up` then.")
@click.option(
    "--console/--no-console",
    "has_console",
    default=True,
    show_default=True,
    help="Serve pages that show the cluster.",
)
@click.option("--end-with-stdin", is_flag=True, help="Stop when standard input ends.")
@click.pass_context
def clone(
    context: click.Context,
    archive: str,
    wish: PointWish,
    allow_empty: bool,
    directory: Path,
    name: str | None,
    tls: bool | None,
    is_open: bool,
    host: str,
    port: int,
    start_over: bool,
    start: bool,
    has_console: bool,
    end_with_stdin: bool,
) -> None:
    """Restore ARCHIVE as a cluster of its own on this machine, and start it.

    ARCHIVE is file:///directory or s3://bucket/prefix. The clone has a new cluster key, so that no
    client of the archived cluster takes it for that one. `waltz up` starts it again later.
    """
    if start and not (tls or is_open or is_local(host)):
        raise ConfigurationError(
            f"every process that reaches {host} could read, write and remove everything: give"
            f" --tls, or --no-start, or, if that is wanted, {OPEN_TO_ANYONE}"
        )
    restored = restore_trial(
        archive,
        wish,
        directory.absolute(),
        same_key=False,
        name=name,
        allow_empty=allow_empty,
        start_over=start_over,
        host=host,
        port=port,
    )
    show_restored(restored, as_json=False)
    if start:
        context.invoke(
            up,
            directory=directory,
            has_console=has_console,
            end_with_stdin=end_with_stdin,
            port=port,
            tls=tls,
            is_open=is_open,
        )
