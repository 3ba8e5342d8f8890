"""`waltz archive status`: what is archived, and how far behind the log."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from waltz.cli.archive_place import FILE, opened_log, read_file, target_of
from waltz.cli.exit_codes import exit_code
from waltz.cli.moments import moment
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.errors import HistoryChangedError, WaltzError
from waltz.types import PartitionId

if TYPE_CHECKING:
    from waltz.archive.archive import Archive
    from waltz.archive.archive_target import Target
    from waltz.archive.cluster_log import ClusterLog
    from waltz.configuration.settings import Settings

UNKNOWN = "unknown"


@click.command("status")
@FILE
@json_option
def archive_status(file: str, as_json: bool) -> None:
    """Show the last archived transaction of each partition, and what the log has beyond it.

    Ends with 3 if the log could not be asked for all of it; what is archived is told all the same.
    """
    from waltz.archive.archive import read_archive

    settings = read_file(file)
    target = target_of(settings)
    archive = read_archive(target)
    marks, reasons = _marks(settings, archive)
    facts = _facts(archive, marks, reasons)
    facts |= _verifications(target, reasons)
    if as_json:
        print_json(facts)
    else:
        _show(facts)
    if reasons:
        sys.exit(exit_code(None))


def _marks(settings: Settings, archive: Archive) -> tuple[dict[PartitionId, int], dict[str, str]]:
    """Return the log's marks, and why some could not be learnt."""
    from waltz.archive.archived_history import expect_archived

    try:
        with opened_log(settings) as log:
            if log.cluster_key != archive.cluster_key:
                text = f"the cluster is {log.cluster_key}; the archive is of another one"
                return {}, {"log": text}
            marks, reasons = _asked(log)
            try:
                expect_archived(archive.contents, log.histories)
            except HistoryChangedError as error:
                reasons["log"] = str(error)
            return marks, reasons
    except WaltzError as error:
        return {}, {"log": str(error)}


def _asked(log: ClusterLog) -> tuple[dict[PartitionId, int], dict[str, str]]:
    marks: dict[PartitionId, int] = {}
    reasons: dict[str, str] = {}
    for partition_id in map(PartitionId, range(log.partition_count)):
        try:
            marks[partition_id] = log.mark(partition_id)
        except WaltzError as error:
            reasons[str(partition_id)] = str(error)
    return marks, reasons


def _verifications(target: Target, reasons: dict[str, str]) -> dict[str, Any]:
    """Return the last verifications; why they are not known goes into `reasons`."""
    from waltz.archive.verification_record import VerificationRecord, read_records

    def shown(record: VerificationRecord | None) -> dict[str, Any] | None:
        if record is None:
            return None
        age = time.time() - record.verified_at / 1000
        return asdict(record) | {
            "verified_at": moment(record.verified_at, "seconds"),
            "age_seconds": max(0.0, age),
        }

    try:
        found = read_records(target)
    except WaltzError as error:
        reasons["verification"] = str(error)
        return {"last_verification": None, "last_full_verification": None}
    return {
        "last_verification": shown(found.last),
        "last_full_verification": shown(found.last_full),
    }


def _too_low(archive: Archive, marks: dict[PartitionId, int]) -> dict[str, str]:
    """Return what is wrong with marks below what is archived, which was read before them."""
    return {
        str(each): f"the archive has transactions to {archive.end(each) - 1}, the log told {mark}"
        " as its last; if that lasts, the log has lost data"
        for each, mark in marks.items()
        if mark + 1 < archive.end(each)
    }


def _facts(
    archive: Archive, marks: dict[PartitionId, int], reasons: dict[str, str]
) -> dict[str, Any]:
    now = int(time.time() * 1000)
    contents = archive.contents
    if "log" not in reasons:  # else the log is known to be another one from some transaction on
        reasons |= _too_low(archive, marks)
        marks = {each: mark for each, mark in marks.items() if str(each) not in reasons}
    known = sorted(
        {*archive.partitions, *marks, *(PartitionId(int(p)) for p in reasons if p != "log")}
    )
    rows = []
    for each in known:
        times = archive.time_marks(each)
        end = archive.end(each)
        found = archive.partitions.get(each)
        rows.append(
            {
                "partition": each,
                "archived": end - 1,
                "log": marks.get(each),
                "behind": None if each not in marks else max(0, marks[each] + 1 - end),
                "archived_until": moment(times[-1].milliseconds, "seconds") if times else None,
                "objects": 0 if found is None else len(found.files),
                "bytes": 0 if found is None else sum(file.byte_count for file in found.files),
                "verified_with": list(contents.verified.get(each, ())),
            }
        )
    return {
        "target": archive.url,
        "cluster_key": str(archive.cluster_key),
        "manifest": contents.number,
        "last_commit": None if contents.made_at is None else moment(contents.made_at, "seconds"),
        "last_commit_age_seconds": (
            None if contents.made_at is None else max(0.0, (now - contents.made_at) / 1000)
        ),
        "cuts": {name: moment(cut.made_at, "seconds") for name, cut in archive.cuts.items()},
        "partitions": rows,
        "unknown": reasons,
    }


def _show(facts: dict[str, Any]) -> None:
    click.echo(f"archive {facts['target']} of cluster {facts['cluster_key']}")
    if facts["last_commit"] is None:
        click.echo("nothing was archived yet")
    else:
        click.echo(
            f"manifest {facts['manifest']}, written {facts['last_commit']},"
            f" {facts['last_commit_age_seconds']:.0f} s ago\n"
        )
    table = new_table(
        *("partition", "archived", "log ends", "behind", "all until", "objects", "bytes"),
        "equal on",
        left=("all until", "equal on"),
    )
    for row in facts["partitions"]:
        table.add_row(
            str(row["partition"]),
            str(row["archived"]),
            _shown(row["log"]),
            _shown(row["behind"]),
            row["archived_until"] or "-",
            str(row["objects"]),
            str(row["bytes"]),
            ", ".join(row["verified_with"]) or "not compared",
        )
    print_table(table)
    for name, made in facts["cuts"].items():
        click.echo(f"cut {name}, made {made}")
    _show_verifications(facts)
    for what, reason in facts["unknown"].items():
        names = {"log": "the log", "verification": "the last verification"}
        name = names.get(what, f"the mark of partition {what}")
        click.echo(f"{name} is unknown: {reason}", err=True)


def _show_verifications(facts: dict[str, Any]) -> None:
    if "verification" in facts["unknown"]:
        return
    last, last_full = facts["last_verification"], facts["last_full_verification"]
    if last is None:
        click.echo("verified: never")
        return
    runs = [("verified", last)]
    if last["objects_left_out"]:
        runs.append(("verified in full", last_full))
    for label, found in runs:
        if found is None:
            click.echo(f"{label}: never")
            continue
        results = {True: "right", False: f"{found['findings']} wrong", None: "not all was learnt"}
        share = f"{found['objects']} objects"
        if found["objects_left_out"]:
            share += f" of {found['objects'] + found['objects_left_out']}"
        compared = f", against {found['against']}" if found["against"] else ""
        click.echo(
            f"{label} {found['verified_at']}, {found['age_seconds']:.0f} s ago:"
            f" {results[found['right']]}; {share} of {found['manifests']} manifests{compared}"
        )


def _shown(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
