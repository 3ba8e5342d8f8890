"""`waltz restore plan`, and how a plan is shown."""

from __future__ import annotations

import time
from typing import Any

import click

from waltz.cli.disk_output import human_bytes
from waltz.cli.moments import moment
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.cli.restore_points import Planned, PointWish, plan_restore, point_options
from waltz.cli.storage_wishes import STORAGES, StoragePlaces
from waltz.restore.carried_nodes import carried_consumers, carried_notes
from waltz.restore.points import AtTime

NOT_KNOWN = (
    "What was committed after the archive's end is not in the archive, and no restore brings it"
    " back; how much that is, this command cannot know."
)


@click.command()
@click.argument("archive")
@point_options
@click.option("--same-key", is_flag=True, help="Keep the cluster's key: after a disaster only.")
@click.option("-s", "--storage", "storages", type=STORAGES, multiple=True, help=STORAGES.help)
@click.option("--name", help="Name of the restored cluster; default: that of the archived one.")
@json_option
def plan(
    archive: str,
    wish: PointWish,
    allow_empty: bool,
    same_key: bool,
    storages: tuple[StoragePlaces, ...],
    name: str | None,
    as_json: bool,
) -> None:
    """Show what a restore would write, and what would be lost; change nothing.

    ARCHIVE is file:///directory or s3://bucket/prefix. The exit code is 1 if the restore would be
    refused.
    """
    found = plan_restore(
        archive,
        wish,
        same_key=same_key,
        storages=storages,
        name=name,
        wall_milliseconds=int(time.time() * 1000),
    )
    if as_json:
        print_json(plan_document(found))
    else:
        show_plan(found, wish)
    found.check_complete(allow_empty=allow_empty)


def planned_changes(found: Planned) -> list[str]:
    """Return sentences about notes and consumers that will not be as they were."""
    lasts = found.plan.lasts
    consumers = carried_consumers(found.archived.consumers, lasts)
    notes = carried_notes(found.archived.notes, lasts, str(found.plan.restore_id))
    return [*consumers.changes, *notes.changes]


def plan_document(found: Planned) -> dict[str, Any]:
    """Return the plan as `--json` prints it."""
    plan = found.plan
    return {
        "archive": plan.archive,
        "point": plan.point,
        "name": plan.name,
        "same_key": plan.same_key,
        "archived_cluster_key": str(plan.archived_key),
        "archived_at": found.archive.contents.made_at,
        "partitions": [
            {
                "partition_id": p,
                "last_transaction_id": place.last,
                "unsure_to_transaction_id": place.unsure_to,
                "archived_to_transaction_id": place.end - 1,
                "left_out": place.left_out,
                "bytes": found.byte_count(p),
                "session_id": plan.sessions[p],
            }
            for p, place in found.places.items()
        ],
        "storages": [
            {
                "storage": each.replica_id,
                "admin_port": each.admin_port,
                "group": each.group,
                "partitions": list(each.partitions),
                "bytes": sum(found.byte_count(p) for p in each.partitions),
            }
            for each in plan.storages
        ],
        "changes": planned_changes(found),
    }


def show_plan(found: Planned, wish: PointWish) -> None:
    """Print the plan for people."""
    plan = found.plan
    key = "the same key" if plan.same_key else "a new cluster key"
    click.echo(f"cluster {plan.name} of {plan.partition_count} partitions, {key}")
    made_at = found.archive.contents.made_at
    until = "never" if made_at is None else moment(made_at)
    click.echo(f"from {plan.archive}, written last {until}, at {plan.point}")
    is_time = isinstance(wish.point, AtTime)
    headings = ["partition", "restored to", "archived to", "left out", "records"]
    table = new_table(*headings, *(["unsure to"] if is_time else []))
    for p, place in found.places.items():
        cells = [str(p), str(place.last), str(place.end - 1), str(place.left_out)]
        cells.append(human_bytes(found.byte_count(p)))
        table.add_row(*cells, *([str(place.unsure_to)] if is_time else []))
    print_table(table)
    if is_time:
        click.echo(
            "unsure: transactions after the one restored to, up to this one, may have been durable"
            " by that time too, and are left out; the times are those of the archiver's clock"
        )
    for each in plan.storages:
        size = human_bytes(sum(found.byte_count(p) for p in each.partitions))
        click.echo(
            f"storage node {each.replica_id}: {len(each.partitions)} partitions, {size} of records"
        )
    for change in planned_changes(found):
        click.echo(change)
    left_out = sum(place.left_out for place in found.places.values())
    if left_out:
        click.echo(f"{left_out} archived transactions lie beyond the point and are left out")
    click.echo(NOT_KNOWN)
