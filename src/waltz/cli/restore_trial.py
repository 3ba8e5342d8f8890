"""Restores a cluster of `waltz up`: its coordinator, its storage directories, its `cluster.json`.

Owns the order: the coordinator has the plan before `cluster.json` is there, so that `waltz up`
makes no empty cluster of a restore that was cut short. Until then `restoring.json` says whose the
directory is, and which addresses the plan has, so that the same command resumes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from waltz.cli.coordination import coordinator_service
from waltz.cli.nodes import run_loop
from waltz.cli.restore_directories import fill_here
from waltz.cli.restore_points import Planned, PointWish, plan_restore
from waltz.cli.trial_directory import (
    FILE_NAME,
    RESTORING_NAME,
    ClusterFile,
    lock_directory,
    plan_cluster,
    prepare_directory,
    read_cluster_file,
    read_unfinished,
    write_cluster_file,
    write_unfinished,
)
from waltz.errors import ConfigurationError
from waltz.host import Host
from waltz.restore.directory_report import DirectoryReport
from waltz.restore.restore_plan import RestorePlan, StorageWish
from waltz.restore.restored_nodes import restored_nodes
from waltz.restore.restoring_shell import begin_restore, report_directory, write_cluster
from waltz.system.real_host import real_host
from waltz.types import ReplicaId, TlsSettings

T = TypeVar("T")

FIRST_PORT = 7100
"""First port of a cluster that has none yet, the coordinator's; as with `waltz up`."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A finished restore: the plan, what was filled here, and what was not kept."""

    planned: Planned
    plan: RestorePlan
    reports: list[DirectoryReport]
    changes: tuple[str, ...]
    seconds: float


def restore_trial(
    archive: str,
    wish: PointWish,
    directory: Path,
    *,
    same_key: bool,
    name: str | None,
    allow_empty: bool,
    start_over: bool,
    host: str = "127.0.0.1",
    port: int = FIRST_PORT,
) -> Restored:
    """Restore a cluster into the directory: an empty one, or one of a cluster of `waltz up` that
    has lost its coordinator and its storage directories.

    Raises ConfigurationError: anything else is in it, or the archive does not have what is asked
    for; DirectoryInUseError: `waltz up` runs on it; NodeExistsError: its cluster exists.
    """
    began = time.monotonic()
    existing = read_unfinished(directory) is None and prepare_directory(directory)
    unlock = lock_directory(directory)
    try:
        planned = plan_restore(
            archive,
            wish,
            same_key=same_key,
            storages=(),
            name=name,
            wall_milliseconds=int(time.time() * 1000),
        )
        planned.check_complete(allow_empty=allow_empty)
        layout = _layout(directory, planned.plan, host, port, exists=existing)
        planned = replace(planned, plan=replace(planned.plan, storages=_storages(layout, planned)))
        if not existing:
            write_unfinished(directory, layout)
        plan = _with_coordinator(
            directory,
            layout,
            lambda door: begin_restore(door.coordinator, planned.plan, root=layout.root),
        )
        layout = replace(layout, cluster_key=str(plan.cluster_key))
        write_cluster_file(directory, layout, ready=False, processes=[])
        (directory / RESTORING_NAME).unlink(missing_ok=True)
        paths = {ReplicaId(str(each.address)): directory / each.name for each in layout.storages}
        for path in paths.values():
            path.mkdir(mode=0o700, exist_ok=True)
        reports = fill_here(planned.archive, plan, paths, planned.byte_count, start_over=start_over)

        async def finish(door: Host) -> tuple[str, ...]:
            for report in reports:
                await report_directory(door.coordinator, report, root=layout.root)
            told = {report.replica_id: report for report in reports}
            made = restored_nodes(plan, planned.archived, told, root=layout.root)
            await write_cluster(door.coordinator, made, root=layout.root)
            return tuple(made.changes)

        changes = _with_coordinator(directory, layout, finish)
        return Restored(planned, plan, reports, changes, time.monotonic() - began)
    finally:
        unlock()


def _layout(
    directory: Path, plan: RestorePlan, host: str, port: int, *, exists: bool
) -> ClusterFile:
    """Return the addresses of the cluster's processes. Raises ConfigurationError: the directory's
    cluster is not the archived one, or not to be restored into."""
    if not exists:
        # The plan that an attempt before may have kept names its storage nodes by their addresses.
        unfinished = read_unfinished(directory)
        if unfinished is not None:
            return replace(unfinished, name=plan.name, partition_count=plan.partition_count)
        return plan_cluster(
            name=plan.name,
            cluster_key=str(plan.cluster_key),
            host=host,
            port=port,
            servers=1,
            partitions=plan.partition_count,
        )
    layout = read_cluster_file(directory)
    if not plan.same_key and UUID(layout.cluster_key) == plan.archived_key:
        raise ConfigurationError(
            f"{directory} is that of the archived cluster ({FILE_NAME} in it): restore there with"
            " --same-key, or give an empty --directory for a clone"
        )
    if plan.same_key and UUID(layout.cluster_key) != plan.archived_key:
        raise ConfigurationError(
            f"{directory} is of cluster {layout.cluster_key}, the archive of"
            f" {plan.archived_key}: with --same-key give the directory of the archived cluster, or"
            " an empty one"
        )
    return replace(layout, name=plan.name, partition_count=plan.partition_count)


def _storages(layout: ClusterFile, planned: Planned) -> tuple[StorageWish, ...]:
    every = tuple(planned.plan.lasts)
    return tuple(
        StorageWish(ReplicaId(str(each.address)), each.admin_address.port, group, every)
        for group, each in enumerate(layout.storages, 1)
    )


def _with_coordinator(
    directory: Path, layout: ClusterFile, work: Callable[[Host], Awaitable[T]]
) -> T:
    """Run `work` with the directory's coordinator running."""

    async def main() -> T:
        logs = directory / "logs"
        logs.mkdir(mode=0o700, exist_ok=True)
        service = coordinator_service(
            directory,
            layout,
            log=logs / "zookeeper.log",
            on_restart=lambda: None,
            tls=TlsSettings(),
        )
        await service.start()
        try:
            door = real_host(layout.coordinator, TlsSettings())
            try:
                return await work(door)
            finally:
                await door.coordinator.close()
        finally:
            await service.stop()

    return run_loop(main())
