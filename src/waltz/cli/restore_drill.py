"""`waltz restore drill`: a whole restore on this machine, timed, checked and removed again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from waltz.cli.disk_output import human_bytes
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.cli.restore_points import PointWish, point_options
from waltz.cli.restore_trial import Restored, restore_trial
from waltz.cli.trial_directory import FILE_NAME, read_cluster_file
from waltz.errors import ConfigurationError, CorruptionError
from waltz.storage.inspection.content import digests
from waltz.storage.inspection.survey import list_partition
from waltz.system.real_disk import RealDisk
from waltz.types import CoordinatorAddress, PartitionId

START_SECONDS_MAX: Final = 120.0
"""Seconds that the restored cluster may take until all of its processes run."""

APPEND_SECONDS_MAX: Final = 60.0
"""Seconds that each partition may take until its first append is committed."""

STOP_SECONDS_MAX: Final = 60.0
"""Seconds that the restored cluster may take to stop; then it is killed."""

DRILL_DATA: Final = b"appended by waltz restore drill"


@dataclass
class Times:
    """The seconds of each step, in order."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - began


@click.command()
@click.argument("archive")
@point_options
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where to make, and remove, the restored cluster's directory; default: the system's.",
)
@json_option
def drill(
    archive: str, wish: PointWish, allow_empty: bool, directory: Path | None, as_json: bool
) -> None:
    """Restore an archive on this machine, start it, check it, and remove it.

    ARCHIVE is file:///directory or s3://bucket/prefix. The drill fills three storage directories,
    starts the cluster, appends a transaction to each partition, stops the cluster, and compares the
    digest of each replica's records with that of what was restored. It touches no other cluster.
    """
    times = Times()
    with TemporaryDirectory(prefix="waltz-drill-", dir=directory) as name:
        place = Path(name) / "cluster"
        with times.of("restore"):
            restored = restore_trial(
                archive,
                wish,
                place,
                same_key=False,
                name=None,
                allow_empty=allow_empty,
                start_over=False,
                port=0,
            )
        with _running(place, times) as coordinator, times.of("append to each partition"):
            _append(coordinator, restored)
        with times.of("compare"):
            _compare(place, restored)
    _show(restored, times, as_json=as_json)


@contextmanager
def _running(directory: Path, times: Times) -> Iterator[CoordinatorAddress]:
    """Run `waltz up` in the directory. Raises ConfigurationError: it does not start."""
    arguments = ["up", "--directory", str(directory), "--no-console", "--end-with-stdin"]
    process = subprocess.Popen(  # noqa: S603 -- our own program
        [sys.executable, "-m", "waltz.cli.main", *arguments],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with times.of("start"):
            deadline = time.monotonic() + START_SECONDS_MAX
            while not json.loads((directory / FILE_NAME).read_text())["ready"]:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ConfigurationError(
                        f"the restored cluster does not start: {_stopped(process)}"
                    )
                time.sleep(0.05)
        yield read_cluster_file(directory).coordinator
        with times.of("stop"):
            _stopped(process)
    finally:
        if process.returncode is None:
            _stopped(process)


def _stopped(process: subprocess.Popen[str]) -> str:
    """Have `waltz up` stop its processes, which the end of its input does, and return what it has
    said. One that is killed at once would leave them in the directory for seconds."""
    try:
        return process.communicate(timeout=STOP_SECONDS_MAX)[1]
    except BaseException as error:
        process.kill()
        said = process.communicate()[1]
        if isinstance(error, subprocess.TimeoutExpired):
            return said
        raise


def _append(coordinator: CoordinatorAddress, restored: Restored) -> None:
    """Append to each partition. Raises CorruptionError: it is not the next transaction; WaltzError:
    the append failed."""
    import waltz

    with waltz.open_client(coordinator, waltz.NoCallbacks()) as client:
        for partition_id, last in restored.plan.lasts.items():
            appended = client.append(partition_id, DRILL_DATA, timeout_seconds=APPEND_SECONDS_MAX)
            if appended != last + 1:
                raise CorruptionError(
                    f"the first append to partition {partition_id} became transaction {appended};"
                    f" expected {last + 1}"
                )


def _compare(directory: Path, restored: Restored) -> None:
    """Raise CorruptionError if a replica's records up to the point are not those restored."""
    for place in read_cluster_file(directory).storages:
        for partition_id, last in restored.plan.lasts.items():
            expected = _digest(restored, partition_id)
            files = list_partition(RealDisk(), str(directory / place.name / str(partition_id)))
            found = digests(RealDisk(), files, lasts=[last], progress=lambda count: None)
            if found.by_last.get(last) != expected:
                raise CorruptionError(
                    f"{place.name} has another partition {partition_id} than was restored: digest"
                    f" {found.by_last.get(last)} up to transaction {last}, expected {expected}"
                )


def _digest(restored: Restored, partition_id: PartitionId) -> str:
    return restored.reports[0].partitions[partition_id].sha256


def _show(restored: Restored, times: Times, *, as_json: bool) -> None:
    held = restored.reports[0].partitions.values()
    byte_count = sum(each.byte_count for each in held)
    transactions = sum(each.last + 1 for each in held)
    serves_after = times.seconds["restore"] + times.seconds["start"]
    if as_json:
        document: dict[str, Any] = {
            "archive": restored.plan.archive,
            "point": restored.plan.point,
            "partitions": restored.plan.partition_count,
            "transactions": transactions,
            "bytes": byte_count,
            "replicas": len(restored.reports),
            "seconds": {step: round(each, 3) for step, each in times.seconds.items()},
            "seconds_until_it_runs": round(serves_after, 3),
        }
        print_json(document)
        return
    click.echo(
        f"restored {transactions} transactions, {human_bytes(byte_count)}, in"
        f" {len(restored.reports)} replicas; the cluster ran after {serves_after:.1f} s"
    )
    table = new_table("step", "seconds", left=("step",))
    for step, each in times.seconds.items():
        table.add_row(step, f"{each:.1f}")
    print_table(table)
    click.echo("all replicas equal what was restored, and each partition took an append")
