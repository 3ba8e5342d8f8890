"""`waltz archive cut` and `waltz archive cuts`: cuts through all partitions, by name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from waltz.cli.archive_place import FILE, read_file, target_of
from waltz.cli.cluster_place import ClusterPlace
from waltz.cli.moments import moment
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.configuration.archive_settings import TLS
from waltz.configuration.coordinator_settings import coordinator_address
from waltz.configuration.tls_settings import tls_settings
from waltz.errors import ConfigurationError, OperationTimeoutError

if TYPE_CHECKING:
    from waltz.archive.archive import Archive, Cut
    from waltz.archive.archive_target import Target
    from waltz.archive.manifest import Contents
    from waltz.host import Host

ARCHIVED_SECONDS_DEFAULT = 600.0
"""The time that everything up to a cut has to be archived, unless told otherwise."""

LOOK_SECONDS = 1.0
"""Between two looks at how far the archiver is."""


@click.command("cut")
@FILE
@click.argument("name")
@click.option(
    *("-t", "--timeout", "seconds"),
    type=click.FloatRange(min=0.0),
    default=ARCHIVED_SECONDS_DEFAULT,
    show_default=True,
    help="Time to wait until everything up to the cut is archived, in seconds.",
)
@json_option
def take_named_cut(file: str, name: str, seconds: float, as_json: bool) -> None:
    """Take a cut of all partitions now, and have the archive name it.

    If a transaction is within the cut, so is all that servers had announced before it was sent.
    While the cut is taken appends are up to 50 ms late. An archiver has to run; the cut is named
    once everything up to it is archived, and before that the archive does not know it.
    """
    from waltz.archive.archive import read_archive
    from waltz.archive.named_cuts import check_name

    settings = read_file(file)
    target = target_of(settings)
    archive = read_archive(target)
    check_name(archive.contents, name)
    place = ClusterPlace(coordinator_address(settings), tls_settings(settings, TLS, listens=False))

    async def take(host: Host, root: str) -> Cut:
        return await _take(host, root, target, archive, name, seconds)

    made = place.run(take)
    if as_json:
        print_json({"target": archive.url, "name": name, **_facts(made)})
    else:
        click.echo(f"cut {name}, made {moment(made.made_at)}, is named by {archive.url}")


async def _take(
    host: Host, root: str, target: Target, archive: Archive, name: str, seconds: float
) -> Cut:
    """Take a cut, wait until all of it is archived, and record it. Raises WaltzError."""
    import asyncio

    from waltz.archive.archive import Cut, read_contents
    from waltz.archive.named_cuts import record_cut, unarchived
    from waltz.cluster.cluster_shell import read_store_params
    from waltz.operators.cuts_shell import take_cut

    key = (await read_store_params(host.coordinator, root)).cluster_key
    if key != archive.cluster_key:
        raise ConfigurationError(
            f"{archive.url} has the log of cluster {archive.cluster_key}; the coordinator is that"
            f" of cluster {key}. Give the file of this cluster's archive"
        )
    await _expect_archived(host, root, archive.contents)
    taken = await take_cut(host, root, on_obstacle=_tell_obstacle)
    cut = Cut(name, taken.marks, taken.made_at)
    click.echo(f"cut taken at {moment(cut.made_at)}: {_marks(cut)}", err=True)
    contents: Contents = archive.contents
    ends_at = host.clock.now() + seconds
    told = 0
    while True:
        contents = await host.workers.run_blocking(partial(read_contents, target, contents))
        lacking = unarchived(contents, cut.marks)
        if not lacking:
            break
        count, partitions = sum(lacking.values()), ", ".join(map(str, lacking))
        missing = f"{count} transactions of partitions {partitions}"
        if host.clock.now() >= ends_at:
            raise OperationTimeoutError(
                f"cut {name} is not named: {missing} were not archived within {seconds:g} s. Does"
                " `waltz archive run` run, with all partitions? Its metrics and its log say what"
                " keeps it; then take another cut"
            )
        if count != told:
            told = count
            click.echo(f"waiting for {missing} to be archived", err=True)
        await asyncio.sleep(LOOK_SECONDS)
    await _expect_archived(host, root, contents)  # a restore may have come meanwhile
    now, writer = host.clock.wall_milliseconds(), uuid4().hex
    await host.workers.run_blocking(
        lambda: record_cut(target, contents, cut, now=now, writer=writer)
    )
    return cut


async def _expect_archived(host: Host, root: str, contents: Contents) -> None:
    """Check that the archive has the transactions that the marks of a cut name now. Raises
    HistoryChangedError: a restore has replaced some since."""
    from waltz.archive.archived_history import expect_archived
    from waltz.cluster.histories import Histories
    from waltz.restore.partition_restoring_shell import read_histories

    node = await read_histories(host.coordinator, root=root)
    expect_archived(contents, Histories.kept(contents.cluster_key, node))


def _tell_obstacle(attempt: int, obstacles: Sequence[str]) -> None:
    click.echo(f"attempt {attempt} made no cut: {'; '.join(obstacles)}", err=True)


@click.command("cuts")
@FILE
@json_option
def list_cuts(file: str, as_json: bool) -> None:
    """List the cuts that the archive names, the oldest first, each with its marks."""
    from waltz.archive.archive import read_archive

    archive = read_archive(target_of(read_file(file)))
    cuts = sorted(archive.cuts.values(), key=lambda each: (each.made_at, each.name))
    if as_json:
        facts = [{"name": each.name, **_facts(each)} for each in cuts]
        print_json({"target": archive.url, "cuts": facts})
    elif not cuts:
        click.echo(f"{archive.url} names no cut; `waltz archive cut` takes one")
    else:
        table = new_table("name", "made", "marks", left=("name", "made", "marks"))
        for each in cuts:
            table.add_row(each.name, moment(each.made_at), _marks(each))
        print_table(table)


def _facts(cut: Cut) -> dict[str, Any]:
    marks = {str(each): mark for each, mark in sorted(cut.marks.items())}
    return {"made": moment(cut.made_at), "marks": marks}


def _marks(cut: Cut) -> str:
    return ",".join(f"{each}={mark}" for each, mark in sorted(cut.marks.items()))
