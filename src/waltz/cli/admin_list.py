"""`waltz admin storage list`: what each storage node has taken, next to what it is assigned."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.nodes import ADDRESS
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.cli.storage_questions import ask_problems, ask_session, ask_usable
from waltz.cli.storage_target import (
    Surroundings,
    find_target,
    read_surroundings,
    talk_to_storage,
)
from waltz.errors import RemoteStorageError, UnavailableError
from waltz.host import Host
from waltz.types import Address, PartitionId, ReplicaId
from waltz.wire.admin_protocol import SessionInfo


@dataclass(frozen=True, slots=True)
class Holding:
    """A partition on a node; `session` and `is_available` are None where it has not taken it."""

    partition_id: PartitionId
    is_assigned: bool
    session: SessionInfo | None
    is_available: bool | None
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        session = self.session
        return {
            "partition_id": self.partition_id,
            "assigned": self.is_assigned,
            "taken": session is not None,
            "available": self.is_available,
            "session_id": None if session is None else session.session_id,
            "low_water_mark": None if session is None else session.low_water_mark,
            "local_low_water_mark": None if session is None else session.local_low_water_mark,
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True)
class Holdings:
    """The report of a node; `trouble` is the reason if there is none, `refuses`: the node gave it
    itself."""

    node: str
    trouble: str | None
    refuses: bool = False
    problems: tuple[str, ...] = ()
    partitions: tuple[Holding, ...] = ()


@click.command("list")
@cluster_options
@click.option("-s", "--storage", type=ADDRESS, help="Only this node. Default: all of the cluster.")
@json_option
def list_storages(place: ClusterPlace, storage: Address | None, as_json: bool) -> None:
    """Show what storage nodes have taken: session, marks, and whether servers may use it.

    Ends with 1 if one does not answer, or refuses.
    """

    async def work(host: Host, root: str) -> list[Holdings]:
        around = await read_surroundings(host, root, ())
        nodes = [Address.parse(node) for node in sorted(around.placement.partitions)]
        wanted = nodes if storage is None else [storage]
        return list(await asyncio.gather(*[_holdings(host, each, around) for each in wanted]))

    found = place.run(work)
    if as_json:
        print_json(
            [
                {
                    "storage": each.node,
                    "trouble": each.trouble,
                    "problems": list(each.problems),
                    "partitions": [holding.to_json() for holding in each.partitions],
                }
                for each in found
            ]
        )
    else:
        show_holdings(found)
    if any(each.trouble is not None for each in found):
        sys.exit(1)


async def _holdings(host: Host, address: Address, around: Surroundings) -> Holdings:
    target = find_target(address, around.placement.admin_ports)
    name = str(target.replica_id or target.admin)
    held = around.placement.partitions.get(target.replica_id or ReplicaId(""), ())
    try:
        async with talk_to_storage(host, address, around) as (_, talk):
            usable = await ask_usable(talk)
            problems, told = await ask_problems(talk)
            partitions = []
            for number in sorted({*held, *usable}):
                session = await ask_session(talk, number) if number in usable else None
                partitions.append(
                    Holding(
                        number, number in held, session, usable.get(number), told.get(number, ())
                    )
                )
    except (UnavailableError, RemoteStorageError) as error:
        return Holdings(name, str(error), refuses=isinstance(error, RemoteStorageError))
    return Holdings(name, None, problems=problems, partitions=tuple(partitions))


def show_holdings(found: Sequence[Holdings]) -> None:
    table = new_table(
        *("storage node", "partition", "session", "low-water mark", "local", "assigned", "taken"),
        *("available", "problems"),
        left=("storage node", "problems"),
    )
    for each in found:
        for holding in each.partitions:
            session = holding.session
            table.add_row(
                each.node,
                str(holding.partition_id),
                "-" if session is None else str(session.session_id),
                "-" if session is None else str(session.low_water_mark),
                "-" if session is None else str(session.local_low_water_mark),
                _yes(holding.is_assigned),
                _yes(session is not None),
                "-" if holding.is_available is None else _yes(holding.is_available),
                "; ".join(holding.problems),
            )
    print_table(table)
    for each in found:
        if each.trouble is not None:
            why = "refuses" if each.refuses else "does not answer"
            click.echo(f"storage node {each.node} {why}: {each.trouble}", err=True)
        for problem in each.problems:
            click.echo(f"storage node {each.node}: {problem}")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
