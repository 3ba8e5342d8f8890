"""`waltz restore cluster` and `storage`: a coordinator's nodes, and storage directories."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from waltz.cli.cluster_place import ClusterPlace, place_in_file
from waltz.cli.nodes import ADDRESS, COORDINATOR
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.cli.restore_directories import directory_wish, fill_here
from waltz.cli.restore_points import (
    Planned,
    PointWish,
    plan_restore,
    point_options,
    restored_bytes,
)
from waltz.cli.restore_trial import Restored, restore_trial
from waltz.cli.storage_wishes import STORAGES, StoragePlaces
from waltz.cli.tls_options import tls_options
from waltz.errors import ConfigurationError, NoNodeError
from waltz.host import Host
from waltz.restore.directory_report import DirectoryReport
from waltz.restore.restore_plan import RestorePlan
from waltz.restore.restored_nodes import restored_nodes
from waltz.restore.restoring_shell import (
    all_reports,
    begin_restore,
    read_plan,
    report_directory,
    write_cluster,
)
from waltz.types import Address, CoordinatorAddress, PartitionId, ReplicaId, TlsSettings

START_OVER = "Remove what a restore that was cut short has written, and fill from the beginning."


def coordinator_place(
    coordinator: CoordinatorAddress | None, config: str | None, tls: TlsSettings
) -> ClusterPlace:
    """Return the place of the restored cluster. Raises click.UsageError: none, or two."""
    if (coordinator is None) == (config is None):
        raise click.UsageError("give the cluster's place: --coordinator, or -c FILE")
    if config is not None:
        return place_in_file(config, tls)
    assert coordinator is not None
    return ClusterPlace(coordinator, tls)


def place_options(command: Any) -> Any:
    """Add `--coordinator`, `-c` and those for TLS."""
    for names, kind, text in (
        (
            ("-c", "--cli-config-path", "config"),
            click.Path(),
            "YAML: zookeeper.connectString, cluster.root, ssl.*.",
        ),
        (("--coordinator",), COORDINATOR, "host:port or zookeeper://host:port/root."),
    ):
        command = click.option(*names, type=kind, help=text)(command)
    return tls_options(command)


@click.command()
@click.argument("archive")
@point_options
@place_options
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Restore a cluster of `waltz up` in this directory, coordinator and all.",
)
@click.option("-s", "--storage", "storages", type=STORAGES, multiple=True, help=STORAGES.help)
@click.option("--same-key", is_flag=True, help="Keep the cluster's key: after a disaster only.")
@click.option("--name", help="Name of the restored cluster; default: that of the archived one.")
@click.option("--start-over", is_flag=True, help=START_OVER)
@json_option
def cluster(
    archive: str,
    wish: PointWish,
    allow_empty: bool,
    coordinator: CoordinatorAddress | None,
    config: str | None,
    tls: TlsSettings,
    directory: Path | None,
    storages: tuple[StoragePlaces, ...],
    same_key: bool,
    name: str | None,
    start_over: bool,
    as_json: bool,
) -> None:
    """Make a cluster from an archive: its coordinator's nodes, and directories here.

    ARCHIVE is file:///directory or s3://bucket/prefix. The cluster gets a key of its own, unless
    --same-key says that it takes the place of the archived one, whose servers must be stopped.
    Directories named with -s are filled here; for each other one run `waltz restore storage` on its
    machine, while this command waits. The cluster exists once all directories hold the same. If the
    command is cut short, the same command resumes.
    """
    if directory is not None:
        if coordinator is not None or config is not None or storages:
            raise click.UsageError("--directory excludes --coordinator, -c and -s")
        restored = restore_trial(
            archive,
            wish,
            directory.absolute(),
            same_key=same_key,
            name=name,
            allow_empty=allow_empty,
            start_over=start_over,
        )
        show_restored(restored, as_json=as_json)
        if not as_json:
            click.echo(f"next: waltz up --directory {directory}", err=True)
        return
    place = coordinator_place(coordinator, config, tls)
    began = time.monotonic()
    found = plan_restore(
        archive,
        wish,
        same_key=same_key,
        storages=storages,
        name=name,
        wall_milliseconds=int(time.time() * 1000),
    )
    found.check_complete(allow_empty=allow_empty)
    plan = _begun(place, found)
    here = {
        ReplicaId(str(each.address)): each.directory
        for each in storages
        if each.directory is not None
    }
    reports = fill_here(found.archive, plan, here, found.byte_count, start_over=start_over)
    changes = _finish(place, found, plan, reports)
    restored = Restored(found, plan, reports, changes, time.monotonic() - began)
    show_restored(restored, as_json=as_json)
    if not as_json:
        click.echo("next: start the storage nodes, then the servers", err=True)


def _begun(place: ClusterPlace, found: Planned) -> RestorePlan:
    """Keep the plan, and return it; or the one that is resumed."""

    async def begin(host: Host, root: str) -> RestorePlan:
        return await begin_restore(host.coordinator, found.plan, root=root)

    plan = place.run(begin)
    if plan.lasts != found.plan.lasts:
        click.echo(
            f"more was archived since restore {plan.restore_id} was begun, which is resumed: it"
            " restores what was archived then",
            err=True,
        )
    return plan


def _finish(
    place: ClusterPlace, found: Planned, plan: RestorePlan, reports: list[DirectoryReport]
) -> tuple[str, ...]:
    """Report the directories that were filled here, wait for the others, and make the cluster;
    return sentences about what was not kept."""
    elsewhere = [
        each.replica_id
        for each in plan.storages
        if each.replica_id not in {report.replica_id for report in reports}
    ]

    async def finish(host: Host, root: str) -> tuple[str, ...]:
        for report in reports:
            await report_directory(host.coordinator, report, root=root)
        if elsewhere:
            click.echo("waiting for directories on other machines; on each of them, run", err=True)
        for replica_id in elsewhere:
            click.echo(
                f"  waltz restore storage {plan.archive} -s {replica_id} --directory DIRECTORY"
                f" --coordinator {place.coordinator}",
                err=True,
            )

        def tell(count: int) -> None:
            if elsewhere:
                click.echo(f"{count} of {len(plan.storages)} directories are filled", err=True)

        told = await all_reports(host.coordinator, plan, tell, root=root)
        made = restored_nodes(plan, found.archived, told, root=root)
        await write_cluster(host.coordinator, made, root=root)
        return tuple(made.changes)

    return place.run(finish)


def show_restored(restored: Restored, *, as_json: bool) -> None:
    """Print what was restored."""
    plan, planned = restored.plan, restored.planned
    held = {p: each for report in restored.reports for p, each in report.partitions.items()}
    # More may have been archived since the restore was begun.
    left_out = {p: planned.places[p].end - 1 - last for p, last in plan.lasts.items()}
    if as_json:
        print_json(
            {
                "restore": str(plan.restore_id),
                "name": plan.name,
                "cluster_key": str(plan.cluster_key),
                "same_key": plan.same_key,
                "point": plan.point,
                "seconds": round(restored.seconds, 3),
                "partitions": [
                    {
                        "partition_id": p,
                        "last_transaction_id": last,
                        "left_out": left_out[p],
                        "bytes": held[p].byte_count if p in held else None,
                        "sha256": held[p].sha256 if p in held else None,
                    }
                    for p, last in plan.lasts.items()
                ],
                "directories": {
                    report.replica_id: str(report.directory_id) for report in restored.reports
                },
                "changes": list(restored.changes),
            }
        )
        return
    click.echo(
        f"restored cluster {plan.name}: {plan.partition_count} partitions,"
        f" {len(plan.storages)} storage nodes, in {restored.seconds:.1f} s"
    )
    click.echo(f"cluster key {plan.cluster_key}{', as before' if plan.same_key else ', a new one'}")
    table = new_table("partition", "last", "left out", "bytes", "digest")
    for p, last in plan.lasts.items():
        cells = ["-", "-"] if p not in held else [str(held[p].byte_count), held[p].sha256[:16]]
        table.add_row(str(p), str(last), str(left_out[p]), *cells)
    print_table(table)
    for change in restored.changes:
        click.echo(change)


@click.command()
@click.argument("archive")
@place_options
@click.option("-s", "--storage", type=ADDRESS, required=True, help="The storage node, host:port.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    required=True,
    help="Its directory: empty, and with no node running in it.",
)
@click.option(
    "-p",
    "--partition",
    "partition_id",
    type=click.IntRange(min=0),
    help="Replace this partition alone, for waltz restore partition; the node must be stopped.",
)
@click.option("--start-over", is_flag=True, help=START_OVER)
@json_option
def storage(
    archive: str,
    coordinator: CoordinatorAddress | None,
    config: str | None,
    tls: TlsSettings,
    storage: Address,
    directory: Path,
    partition_id: int | None,
    start_over: bool,
    as_json: bool,
) -> None:
    """Fill one storage node's empty directory, for a restore that was begun.

    ARCHIVE is file:///directory or s3://bucket/prefix. `waltz restore cluster` has written the plan
    into the coordinator, and waits for the report of what the directory holds. With --partition the
    directory is that of a node that is stopped, and one partition in it is replaced.
    """
    place = coordinator_place(coordinator, config, tls)
    if partition_id is not None:
        from waltz.cli import restore_partition

        if start_over:
            raise click.UsageError("--partition excludes --start-over: it may be repeated anyway")
        number = PartitionId(partition_id)
        plan_of_one, filled = restore_partition.fill_storage(
            archive, place, number, storage, directory.absolute()
        )
        if as_json:
            print_json(restore_partition.filled_json(plan_of_one, filled))
        else:
            restore_partition.show_filled(plan_of_one, ReplicaId(str(storage)), filled)
        return
    from waltz.archive.archive import open_archive

    replica_id = ReplicaId(str(storage))

    async def ask(host: Host, root: str) -> RestorePlan:
        try:
            return await read_plan(host.coordinator, root=root)
        except NoNodeError:
            raise ConfigurationError(
                f"no restore was begun at {root} of {place.coordinator}: run waltz restore cluster"
                " first, which writes the plan"
            ) from None

    plan = place.run(ask)
    directory_wish(plan, replica_id)  # raises if the plan does not have the node
    found = open_archive(archive)
    if found.cluster_key != plan.archived_key:
        raise ConfigurationError(
            f"{archive} has the log of cluster {found.cluster_key}, and the restore is of cluster"
            f" {plan.archived_key}"
        )

    def byte_count(partition_id: PartitionId) -> int:
        return restored_bytes(found, partition_id, plan.lasts[partition_id])

    (report,) = fill_here(
        found, plan, {replica_id: directory.absolute()}, byte_count, start_over=start_over
    )

    async def tell(host: Host, root: str) -> None:
        await report_directory(host.coordinator, report, root=root)

    place.run(tell)
    show_report(report, directory, as_json=as_json)


def show_report(report: DirectoryReport, directory: Path, *, as_json: bool) -> None:
    """Print what a directory holds."""
    if as_json:
        document: Mapping[str, Any] = {
            "restore": str(report.restore_id),
            "storage": report.replica_id,
            "directory": str(directory),
            "directory_id": str(report.directory_id),
            "partitions": [
                {
                    "partition_id": p,
                    "last_transaction_id": held.last,
                    "bytes": held.byte_count,
                    "sha256": held.sha256,
                }
                for p, held in report.partitions.items()
            ],
        }
        print_json(document)
        return
    click.echo(f"{directory} holds what storage node {report.replica_id} is to hold")
    table = new_table("partition", "last", "bytes", "digest")
    for p, held in report.partitions.items():
        table.add_row(str(p), str(held.last), str(held.byte_count), held.sha256[:16])
    print_table(table)
