"""`waltz restore partition`: one partition of a living cluster, from the archive."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import click

from waltz.cli.cluster_place import ClusterPlace
from waltz.cli.disk_output import human_bytes
from waltz.cli.output import json_option, print_json, progress_bar
from waltz.cli.restore_cluster import coordinator_place, place_options
from waltz.cli.restore_directories import check_room
from waltz.cli.restore_plans import NOT_KNOWN
from waltz.cli.restore_points import PointWish, point_options, restored_bytes
from waltz.cli.storage_questions import admin_address_of, ask_session
from waltz.cli.storage_wishes import DIRECTORIES
from waltz.cluster.cluster_shell import (
    read_connection_metadata,
    read_partition_metadata,
    read_replica_assignments,
    read_store_params,
)
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.replica_assignments import ReplicaAssignments
from waltz.cluster.store_params import StoreParams
from waltz.errors import (
    ConfigurationError,
    NoNodeError,
    RemoteStorageError,
    StorageError,
    UnavailableError,
)
from waltz.host import Host
from waltz.limits import HANDSHAKE_SECONDS_MAX
from waltz.majority import majority
from waltz.operators.conversation_shell import talk_to_admin_port
from waltz.restore.archived_cluster import archived_cluster
from waltz.restore.directory_filling import Filling
from waltz.restore.partition_filling import FilledPartition, PartitionWish, fill_partition
from waltz.restore.partition_restore import PartitionRestore, check_history, reserved_numbers
from waltz.restore.partition_restoring_shell import (
    begin_partition,
    finish_partition,
    read_assignment,
    read_histories,
    read_partition_plan,
    report_partition,
)
from waltz.restore.points import Place, place_of
from waltz.storage.log.index_file import ENTRY_BYTES
from waltz.system.real_disk import RealDisk
from waltz.types import (
    NO_GENERATION,
    NO_SESSION,
    Address,
    CoordinatorAddress,
    PartitionId,
    ReplicaId,
    TlsSettings,
)

if TYPE_CHECKING:
    from waltz.archive.archive import Archive


@dataclass(frozen=True, slots=True)
class Found:
    """The partition as the cluster knows it, and the directory in which each replica works."""

    params: StoreParams
    metadata: PartitionMetadata
    replicas: tuple[ReplicaId, ...]
    directories: dict[ReplicaId, UUID]
    holding: dict[ReplicaId, str | None]
    """Why each replica cannot say that it holds the partition; None: it holds it."""

    @property
    def holders(self) -> list[ReplicaId]:
        return [each for each, trouble in self.holding.items() if trouble is None]


@click.command()
@click.argument("archive")
@click.option(
    "-p", "--partition", "partition_id", type=click.IntRange(min=0), required=True,
    help="The partition to replace.",
)  # fmt: skip
@point_options
@place_options
@click.option("-s", "--storage", "here", type=DIRECTORIES, multiple=True, help=DIRECTORIES.help)
@click.option(
    "--abandon-suffix",
    is_flag=True,
    help="Set aside what replicas hold beyond the point, and restore although they answer.",
)
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be done; change nothing.")
@json_option
def partition(
    archive: str,
    partition_id: int,
    wish: PointWish,
    allow_empty: bool,
    coordinator: CoordinatorAddress | None,
    config: str | None,
    tls: TlsSettings,
    here: tuple[tuple[Address, Path], ...],
    abandon_suffix: bool,
    only_plan: bool,
    as_json: bool,
) -> None:
    """Replace one partition of a living cluster, whose nodes of that partition are stopped.

    ARCHIVE is file:///directory or s3://bucket/prefix. Use it when a majority of the partition's
    replicas is gone for good, and the other partitions are well. The command fences the partition
    off, so that no server opens it, and fills the directories named with -s; for each other replica
    run `waltz restore storage --partition` on its machine, while this command waits. What a
    directory held is set aside next to it, never deleted. Once all replicas hold the same the
    servers continue, as soon as the storage nodes are started. If the command is cut short, the
    same command resumes.
    """
    place = coordinator_place(coordinator, config, tls)
    number = PartitionId(partition_id)
    began = time.monotonic()
    opened = _open(archive)
    at = place_of(opened, wish.point, number)
    if at.end == 0 and not opened.time_marks(number) and not allow_empty:
        raise ConfigurationError(
            f"nothing is archived of partition {number}, and no archiver has noted that it was"
            " empty: with --allow-empty it is restored without records"
        )
    found, wanted = _plan(place, opened, archive, wish.said, number, at, abandon_suffix)
    _show_plan(wanted, at, found, as_json=as_json and only_plan)
    _check_lost(found, number, abandon_suffix=abandon_suffix)
    if only_plan:
        return
    strangers = {ReplicaId(str(each)) for each, _ in here} - {*found.replicas}
    if strangers:
        raise ConfigurationError(
            f"{min(strangers)} does not hold partition {number}; these do:"
            f" {', '.join(found.replicas)}"
        )

    async def begin(host: Host, root: str) -> PartitionRestore:
        return await begin_partition(host.coordinator, wanted, root=root)

    plan = place.run(begin)
    if plan.last != wanted.last:
        click.echo(
            f"more was archived since restore {plan.restore_id} was begun, which is resumed: it"
            f" restores partition {number} to transaction {plan.last}",
            err=True,
        )
    filled = {}
    for address, directory in here:
        replica_id = ReplicaId(str(address))
        filled[replica_id] = fill_here(opened, place, plan, found, replica_id, directory)
    changes = _finish(place, plan, found, filled)
    _show_restored(plan, at, filled, changes, time.monotonic() - began, as_json=as_json)


def _plan(
    place: ClusterPlace,
    archive: Archive,
    url: str,
    said: str,
    partition_id: PartitionId,
    at: Place,
    abandon_suffix: bool,
) -> tuple[Found, PartitionRestore]:
    """Return what the cluster knows of the partition, and the plan of a restore that begins now."""

    async def look(host: Host, root: str) -> tuple[Found, PartitionRestore]:
        found = await _look(host, root, partition_id)
        if found.params.cluster_key != archive.cluster_key:
            raise ConfigurationError(
                f"{url} has the log of cluster {archive.cluster_key}, and the cluster at"
                f" {place.coordinator} is {found.params.cluster_key}"
            )
        histories = await read_histories(host.coordinator, root=root)
        check_history(histories, archived_cluster(archive).histories, partition_id, at.last)
        assignment = await read_assignment(host.coordinator, root=root)
        generations = [
            held[partition_id] for held in assignment.servers.values() if partition_id in held
        ]
        session_id, generation = reserved_numbers(
            found.metadata, max(generations, default=NO_GENERATION)
        )
        return found, PartitionRestore(
            uuid4(), url, said, partition_id, at.last, session_id, generation, found.replicas,
            abandon_suffix, int(time.time() * 1000),
        )  # fmt: skip

    return place.run(look)


def fill_storage(
    archive: str, place: ClusterPlace, partition_id: PartitionId, address: Address, directory: Path
) -> tuple[PartitionRestore, FilledPartition]:
    """Fill the partition in the directory of one storage node, for a restore that was begun, and
    report it. Raises ConfigurationError: none was begun, or not for this node; and as
    `fill_here`."""
    replica_id = ReplicaId(str(address))

    async def look(host: Host, root: str) -> tuple[PartitionRestore, Found]:
        try:
            plan = await read_partition_plan(host.coordinator, partition_id, root=root)
        except NoNodeError:
            raise ConfigurationError(
                f"no restore of partition {partition_id} was begun at {root} of"
                f" {place.coordinator}: run waltz restore partition first, which writes the plan"
            ) from None
        return plan, await _look(host, root, partition_id, asks=False)

    plan, found = place.run(look)
    if replica_id not in plan.replicas:
        raise ConfigurationError(
            f"the restore of partition {partition_id} has no storage node {replica_id}; it has"
            f" {', '.join(plan.replicas)}"
        )
    opened = _open(archive)
    if opened.cluster_key != found.params.cluster_key:
        raise ConfigurationError(
            f"{archive} has the log of cluster {opened.cluster_key}, and the restore is of cluster"
            f" {found.params.cluster_key}"
        )
    filled = fill_here(opened, place, plan, found, replica_id, directory)
    return plan, filled


def fill_here(
    archive: Archive,
    place: ClusterPlace,
    plan: PartitionRestore,
    found: Found,
    replica_id: ReplicaId,
    directory: Path,
) -> FilledPartition:
    """Fill the partition in a directory of this machine, and report it. Raises as
    `fill_partition`, but StorageError in the place of OSError."""
    wish = PartitionWish(
        plan.restore_id,
        found.params.cluster_key,
        found.params.partition_count,
        replica_id,
        found.directories.get(replica_id),
        plan.partition_id,
        plan.last,
        plan.session_id,
        plan.abandons_suffix,
    )
    byte_count = restored_bytes(archive, plan.partition_id, plan.last)
    if directory.is_dir():
        check_room({str(directory): byte_count + ENTRY_BYTES * (plan.last + 1)})
    with progress_bar("restore", byte_count) as progress:
        filling = Filling(RealDisk(), lambda: int(time.time() * 1000), uuid4, progress=progress)
        try:
            filled = fill_partition(filling, archive.blocks, str(directory), wish)
        except OSError as error:
            raise StorageError(
                f"the restore into {directory} failed: {error}; its storage node has not taken"
                f" partition {plan.partition_id}, or holds it as before, until the same command has"
                " run again"
            ) from error

    async def tell(host: Host, root: str) -> None:
        await report_partition(host.coordinator, plan, filled.report, root=root)

    place.run(tell)
    return filled


def _open(archive: str) -> Archive:
    from waltz.archive.archive import open_archive  # only with its libraries

    return open_archive(archive)


async def _look(host: Host, root: str, partition_id: PartitionId, *, asks: bool = True) -> Found:
    """Return what the cluster knows of the partition; with `asks` each replica is asked whether it
    holds the partition."""
    coordinator = host.coordinator
    params = await read_store_params(coordinator, root)
    if partition_id >= params.partition_count:
        raise ConfigurationError(
            f"the cluster has partitions 0 to {params.partition_count - 1}, not {partition_id}"
        )
    try:
        metadata = await read_partition_metadata(coordinator, partition_id, root)
    except NoNodeError:
        raise ConfigurationError(
            f"partition {partition_id} has never had a store session: there is nothing that a"
            " restore could replace. Start a server, and append"
        ) from None
    assignments = ReplicaAssignments(await read_replica_assignments(coordinator, root))
    replicas = assignments.replicas(partition_id)
    if not replicas:
        raise ConfigurationError(
            f"no storage node holds partition {partition_id}: give it to some first, with waltz"
            " cluster assign-partition"
        )
    paths = ClusterPaths(root)
    directories = {}
    for replica_id in replicas:
        try:
            node = await coordinator.read(paths.storage_directory(replica_id))
            directories[replica_id] = UUID((node.data or b"").decode("ascii"))
        except (NoNodeError, ValueError):
            continue  # a node of the Java original tells no directory
    if not asks:
        return Found(params, metadata, replicas, directories, {})
    ports = await read_connection_metadata(coordinator, root)

    async def trouble(replica_id: ReplicaId) -> str | None:
        try:
            admin = admin_address_of(replica_id, ports)
            async with talk_to_admin_port(
                host, admin, params, seconds=HANDSHAKE_SECONDS_MAX
            ) as talk:
                session = await ask_session(talk, partition_id)
        except (UnavailableError, RemoteStorageError, ConfigurationError) as error:
            return str(error)
        return "it holds nothing of it" if session.session_id == NO_SESSION else None

    answers = await asyncio.gather(*map(trouble, replicas))
    return Found(params, metadata, replicas, directories, dict(zip(replicas, answers, strict=True)))


def _check_lost(found: Found, partition_id: PartitionId, *, abandon_suffix: bool) -> None:
    holders = found.holders
    if len(holders) >= majority(len(found.replicas)) and not abandon_suffix:
        raise ConfigurationError(
            f"{len(holders)} of {len(found.replicas)} replicas of partition {partition_id} answer"
            f" and hold it ({', '.join(holders)}): a majority is there, nothing is lost, and"
            " servers fill the others. To go back to the point all the same, and set aside what was"
            " committed after it, add --abandon-suffix"
        )


def _finish(
    place: ClusterPlace,
    plan: PartitionRestore,
    found: Found,
    filled: dict[ReplicaId, FilledPartition],
) -> tuple[str, ...]:
    elsewhere = [each for each in plan.replicas if each not in filled]
    if elsewhere:
        click.echo("waiting for directories on other machines; on each of them, run", err=True)
    for replica_id in elsewhere:
        click.echo(
            f"  waltz restore storage {plan.archive} --partition {plan.partition_id}"
            f" -s {replica_id} --directory DIRECTORY --coordinator {place.coordinator}",
            err=True,
        )

    def tell(count: int) -> None:
        if elsewhere:
            click.echo(f"{count} of {len(plan.replicas)} directories are filled", err=True)

    async def finish(host: Host, root: str) -> tuple[str, ...]:
        return await finish_partition(
            host.coordinator, plan, found.params.partition_count, tell, root=root
        )

    return place.run(finish)


def _show_plan(plan: PartitionRestore, at: Place, found: Found, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "archive": plan.archive,
                "point": plan.point,
                "partition_id": plan.partition_id,
                "last_transaction_id": at.last,
                "unsure_to_transaction_id": at.unsure_to,
                "archived_to_transaction_id": at.end - 1,
                "left_out": at.left_out,
                "session_id": plan.session_id,
                "generation": plan.generation,
                "replicas": {
                    each: {"holds": trouble is None, "trouble": trouble}
                    for each, trouble in found.holding.items()
                },
            }
        )
        return
    unsure = (
        f"; transactions up to {at.unsure_to} may have been durable by then, too"
        if at.unsure_to > at.last
        else ""
    )
    click.echo(
        f"partition {plan.partition_id} is restored to transaction {at.last}, archived to"
        f" {at.end - 1}, {at.left_out} left out{unsure}",
        err=True,
    )
    for each, trouble in found.holding.items():
        click.echo(f"replica {each}: {trouble or 'it answers, and holds it'}", err=True)
    click.echo(NOT_KNOWN, err=True)


def _show_restored(
    plan: PartitionRestore,
    at: Place,
    filled: dict[ReplicaId, FilledPartition],
    changes: tuple[str, ...],
    seconds: float,
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(
            {
                "restore": str(plan.restore_id),
                "partition_id": plan.partition_id,
                "last_transaction_id": plan.last,
                "left_out": at.end - 1 - plan.last,
                "seconds": round(seconds, 3),
                "directories": {each: filled_json(plan, one) for each, one in filled.items()},
                "changes": list(changes),
            }
        )
        return
    click.echo(
        f"restored partition {plan.partition_id} to transaction {plan.last} in"
        f" {len(plan.replicas)} replicas, in {seconds:.1f} s"
    )
    for each, one in filled.items():
        show_filled(plan, each, one)
    for change in changes:
        click.echo(change)
    click.echo("next: start the storage nodes; the servers continue by themselves", err=True)


def filled_json(plan: PartitionRestore, filled: FilledPartition) -> dict[str, Any]:
    """Return what one directory holds now, as `--json` prints it."""
    held = filled.report.partitions[plan.partition_id]
    return {
        "directory_id": str(filled.report.directory_id),
        "last_transaction_id": held.last,
        "bytes": held.byte_count,
        "sha256": held.sha256,
        "set_aside": filled.set_aside,
        "set_aside_to_transaction_id": filled.last,
    }


def show_filled(plan: PartitionRestore, replica_id: ReplicaId, filled: FilledPartition) -> None:
    """Print what one directory holds now."""
    held = filled.report.partitions[plan.partition_id]
    click.echo(
        f"storage node {replica_id} holds partition {plan.partition_id} up to {held.last},"
        f" {human_bytes(held.byte_count)}, digest {held.sha256[:16]}"
    )
    if filled.set_aside is not None:
        held_before = "nobody can tell what" if filled.last is None else f"up to {filled.last}"
        click.echo(f"  set aside: {filled.set_aside}, {held_before}")
