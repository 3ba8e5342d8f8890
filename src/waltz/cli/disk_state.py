"""`waltz disk inspect`, `control-file` and `verify`: a directory's owner, its promises, and its
integrity."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from waltz.cli.disk_group import WrongCallError
from waltz.cli.disk_output import disk_door, human_bytes, path_argument, shown, target_at
from waltz.cli.moments import moment
from waltz.cli.output import json_option, new_table, print_json, print_table, progress_bar
from waltz.errors import CorruptionError
from waltz.storage.directory.control_struct import CONTROL_FILE_NAME, PartitionInfo
from waltz.storage.inspection.content import target_partitions
from waltz.storage.inspection.findings import Finding, Report
from waltz.storage.inspection.promises import Promises, read_promises
from waltz.storage.inspection.survey import (
    Control,
    ControlEntry,
    PartitionFiles,
    end_of_log,
    list_partition,
    read_control,
)
from waltz.storage.inspection.verification import Options, verify, verify_transaction
from waltz.types import PartitionId, TransactionId

SECOND_LOOK_SECONDS = 0.25
"""Seconds between two looks: by then a node that is writing has finished what the first look saw
half done."""


def wait_for_writer() -> None:
    """Wait between two looks at files that a node may be writing."""
    time.sleep(SECOND_LOOK_SECONDS)


# inspect


@dataclass(frozen=True, slots=True)
class DirectoryPartition:
    """A partition as `inspect` shows it; None for a value that is not known."""

    partition_id: int
    session_id: int | None
    fence: int | None
    low_water_mark: int | None
    local_low_water_mark: int | None
    flags: int | None
    assigned: bool | None
    readable: bool | None
    writable: bool | None
    segments: tuple[dict[str, int | None], ...]
    first_transaction_id: int | None
    last_transaction_id: int | None
    bytes: int


def overview_of(
    promises: Promises, partition_id: PartitionId, files: PartitionFiles | None
) -> DirectoryPartition:
    info = promises.info(partition_id)
    slot = promises.slot(partition_id)
    end = None if files is None else end_of_log(disk_door, files)
    segments = () if files is None else files.segments
    is_empty = end is None or end == segments[0].first
    return DirectoryPartition(
        partition_id,
        info.session_id if info else None,
        max(slot.fence, info.session_id) if slot and info else None,
        info.low_water_mark if info else None,
        info.local_low_water_mark if info else None,
        info.flags if info else None,
        info.is_assigned if info else None,
        info.is_readable if info else None,
        info.is_writable if info else None,
        tuple(asdict(segment) for segment in segments),
        None if is_empty else segments[0].first,
        None if end is None else end - 1,
        0 if files is None else files.bytes,
    )


@click.command("inspect")
@path_argument("DIRECTORY")
@click.option("--all", "show_all", is_flag=True, help="Show partitions that are not assigned, too.")
@json_option
def inspect_directory(path: Path, show_all: bool, as_json: bool) -> None:
    """Show which cluster and node a storage directory belongs to, and its partitions."""
    directory = target_at(path).directory
    if directory is None:
        raise WrongCallError(f"{path} is not in a storage directory; give a path in one")
    promises = read_promises(disk_door, directory, wait_for_writer)
    control = promises.control
    if control is None:
        raise CorruptionError("; ".join(finding.text for finding in promises.findings))
    overviews = []
    for number in range(promises.partition_count):
        place = f"{directory}/{number}"
        info = promises.info(PartitionId(number))
        if show_all or info is None or info.is_assigned:
            files = list_partition(disk_door, place) if disk_door.exists(place) else None
            overviews.append(overview_of(promises, PartitionId(number), files))
    directory_id = promises.node.header.directory_id if promises.node else None
    if as_json:
        print_json(
            {
                "directory": directory,
                "cluster_key": str(control.cluster_key),
                "directory_id": str(directory_id) if directory_id else None,
                "created_milliseconds": control.created_milliseconds,
                "partition_count": control.partition_count,
                "partitions": [asdict(overview) for overview in overviews],
                "findings": [finding.to_json() for finding in promises.findings],
            }
        )
    else:
        show_overviews(control, directory_id, overviews)
        show_findings(promises.findings)
    if any(finding.kind.is_damage for finding in promises.findings):
        sys.exit(1)


def show_overviews(
    control: Control, directory_id: object | None, overviews: Sequence[DirectoryPartition]
) -> None:
    click.echo(f"cluster key     {control.cluster_key}")
    click.echo(f"directory ID    {directory_id or 'none: written by the original alone'}")
    click.echo(f"created         {moment(control.created_milliseconds)}")
    click.echo(f"partitions      {control.partition_count} in the cluster\n")
    table = new_table(
        *("partition", "session", "fence", "low-water mark", "local", "access", "segments"),
        *("first", "last", "size"),
        left=("access",),
    )
    for overview in overviews:
        table.add_row(
            str(overview.partition_id),
            shown(overview.session_id),
            shown(overview.fence),
            shown(overview.low_water_mark),
            shown(overview.local_low_water_mark),
            access_text(overview.assigned, overview.readable, overview.writable),
            str(len(overview.segments)),
            shown(overview.first_transaction_id),
            shown(overview.last_transaction_id),
            human_bytes(overview.bytes),
        )
    print_table(table)


def access_text(assigned: bool | None, readable: bool | None, writable: bool | None) -> str:
    if assigned is None:
        return "damaged"
    if not assigned:
        return "not assigned"
    return {
        (True, True): "read, write",
        (True, False): "read only",
        (False, True): "write only",
        (False, False): "off",
    }[bool(readable), bool(writable)]


# control-file


@click.command("control-file")
@path_argument("FILE|DIRECTORY")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option("--assigned", is_flag=True, help="Only partitions that are assigned.")
@json_option
def control_file(path: Path, partition: int | None, assigned: bool, as_json: bool) -> None:
    """Show the control file: what was promised for each partition, both structs of it."""
    if partition is not None and assigned:
        raise click.UsageError("--partition and --assigned exclude each other: give one of them")
    place = str(path.absolute())
    if path.is_dir():
        place = f"{place}/{CONTROL_FILE_NAME}"
    control = read_control(disk_door, place)
    count = len(control.entries)
    if partition is not None and partition >= count:
        raise click.UsageError(
            f"--partition {partition} is out of range: {place} has partitions 0 to {count - 1}"
        )
    entries = [
        entry
        for entry in control.entries
        if partition in (None, entry.partition_id)
        and (not assigned or (entry.info is not None and entry.info.is_assigned))
    ]
    if as_json:
        print_json(
            {
                "path": control.path,
                "format_version": control.version,
                "created_milliseconds": control.created_milliseconds,
                "cluster_key": str(control.cluster_key),
                "partition_count": control.partition_count,
                "partitions": [entry_json(entry) for entry in entries],
            }
        )
    else:
        show_control(control, entries)
    if any(is_entry_damaged(entry) for entry in entries):
        sys.exit(1)


def is_entry_damaged(entry: ControlEntry) -> bool:
    return None in entry.twins or entry.current is None or entry.found_id != entry.partition_id


def info_json(info: PartitionInfo, sequence_number: int) -> dict[str, Any]:
    return {
        "session_id": info.session_id,
        "low_water_mark": info.low_water_mark,
        "local_low_water_mark": info.local_low_water_mark,
        "flags": info.flags,
        "assigned": info.is_assigned,
        "readable": info.is_readable,
        "writable": info.is_writable,
        "sequence_number": sequence_number,
    }


def entry_json(entry: ControlEntry) -> dict[str, Any]:
    return {
        "partition_id": entry.partition_id,
        "found_partition_id": entry.found_id,
        "current_struct": None if entry.current is None else entry.current + 1,
        "structs": [None if twin is None else info_json(*twin) for twin in entry.twins],
    }


def show_control(control: Control, entries: Sequence[ControlEntry]) -> None:
    from rich.text import Text

    click.echo(f"format version  {control.version}")
    click.echo(f"created         {moment(control.created_milliseconds)}")
    click.echo(f"cluster key     {control.cluster_key}")
    click.echo(f"partitions      {control.partition_count} in the cluster\n")
    table = new_table(
        *("partition", "struct", "sequence", "session", "low-water mark", "local", "flags"),
        *("access", ""),
        left=("access", ""),
    )
    for entry in entries:
        number = str(entry.partition_id)
        if entry.found_id != entry.partition_id:
            number += f" (says {entry.found_id})"
        for twin, found in enumerate(entry.twins):
            label = number if twin == 0 else ""
            row = ["-"] * 5 + [""]
            verdict = Text("checksum fails", style="red")
            if found is not None:
                info, sequence_number = found
                marks = (info.low_water_mark, info.local_low_water_mark)
                row = [
                    *map(str, (sequence_number, info.session_id, *marks, info.flags)),
                    access_text(info.is_assigned, info.is_readable, info.is_writable),
                ]
                verdict = Text("current" if twin == entry.current else "")
            table.add_row(label, str(twin + 1), *row, verdict)
    print_table(table)


# verify


@click.command("verify")
@path_argument("PATH")
@click.option(
    "--transaction", type=click.IntRange(min=0), help="This one only, in a partition or segment."
)
@click.option("--data-checksums", is_flag=True, help="Check the client's CRC-32 of the data, too.")
@json_option
def verify_path(path: Path, transaction: int | None, data_checksums: bool, as_json: bool) -> None:
    """Check a storage directory, a partition directory or a segment file: every record, every index
    entry, all headers, and what was promised."""
    target = target_at(path)
    total = sum(files.bytes for files in target_partitions(disk_door, target))
    with progress_bar("verify", total) as progress:
        options = Options(data_checksums, progress, wait_for_writer)
        if transaction is None:
            report = verify(disk_door, target, options)
        elif target.partition_directory is None:
            raise click.UsageError("--transaction needs a partition directory or a segment file")
        else:
            report = verify_transaction(disk_door, target, TransactionId(transaction), options)
    if as_json:
        print_json(report_json(path, report))
    else:
        show_findings(report.findings)
        show_summary(report)
    if report.is_damaged:
        sys.exit(1)


def report_json(path: Path, report: Report) -> dict[str, Any]:
    return {
        "path": str(path),
        "is_damaged": report.is_damaged,
        "files": report.files,
        "bytes": report.bytes,
        "records": report.records,
        "records_failed": report.records_failed,
        "index_entries": report.entries,
        "index_entries_failed": report.entries_failed,
        "finding_counts": {kind.value: count for kind, count in report.counts.items()},
        "findings": [finding.to_json() for finding in report.findings],
    }


def show_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        place = finding.path
        if finding.first is not None and finding.next_transaction_id is not None:
            last = finding.next_transaction_id - 1
            place += f" transaction {finding.first}"
            if last != finding.first:
                place = f"{finding.path} transactions {finding.first} to {last}"
        if finding.offset is not None:
            place += f" at byte {finding.offset}"
        click.echo(f"{finding.kind.value}: {place}: {finding.text}")


def show_summary(report: Report) -> None:
    hidden = report.finding_count - len(report.findings)
    if hidden:
        click.echo(f"and {hidden} more")
    click.echo(f"{report.records_failed} of {report.records} records failed")
    click.echo(f"{report.entries_failed} of {report.entries} index entries failed")
    kinds = ", ".join(f"{count} {kind.value}" for kind, count in report.counts.items())
    verdict = "damaged" if report.is_damaged else "no damage"
    click.echo(
        f"{verdict}: {report.files} files, {human_bytes(report.bytes)}"
        + (f"; found: {kinds}" if kinds else "")
    )
