"""`waltz consumers`: who reads the log under which name, and how far each is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.exit_codes import exit_code
from waltz.cli.moments import moment
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.errors import NotFoundError

if TYPE_CHECKING:
    from waltz.host import Host
    from waltz.operators.client_questions_shell import Lag, MountedClient
    from waltz.operators.named_consumers_shell import (
        ConsumerInstance,
        ConsumerPartition,
        ConsumersView,
        NamedConsumer,
    )

UNKNOWN = "unknown"

MOUNTS_SHOWN_MAX = 8
"""Marks in the line of one client; `--json` has all."""


@click.group()
def consumers() -> None:
    """Show named consumers and how far they are, and forget them.

    A name is what a client calls itself, and proves nothing. Marks are told by clients, at most
    half a second old while they are connected; the coordinator keeps them for later, at most 30 s
    old. Lag in seconds is the time since the first transaction that is not applied was committed.
    """


@consumers.command("list")
@cluster_options
@click.option("--all", "everybody", is_flag=True, help="All mounted clients, named or not.")
@json_option
def list_consumers(place: ClusterPlace, everybody: bool, as_json: bool) -> None:
    """Print all consumers, which are connected, and how far each is behind.

    Ends with 3 if not every server could be asked.
    """
    view = _read(place, everybody=everybody)
    if as_json:
        print_json(_view_json(view))
    else:
        _show_list(view)
    _end(view)


@consumers.command()
@click.argument("name")
@cluster_options
@json_option
def show(place: ClusterPlace, name: str, as_json: bool) -> None:
    """Print the marks and the clients of the consumer NAME, partition by partition.

    Ends with 3 if not every server could be asked.
    """
    show_named(name, _read(place, everybody=True), as_json=as_json)


def show_named(name: str, view: ConsumersView, *, as_json: bool) -> None:
    """Print the consumer of this name. Raises NotFoundError: there is none."""
    found = next((each for each in view.consumers if each.name == name), None)
    if found is None:
        _show_unasked(view)
        none_kept = f"no mark of {name!r} is kept"
        if view.is_complete:
            raise NotFoundError(f"no client of that name is connected, and {none_kept}")
        text = f"{none_kept}, and whether a client of that name is connected is unknown"
        click.echo(f"waltz: {text}: not every server has told all of its clients", err=True)
        _end(view)
        return
    if as_json:
        print_json(_asked_json(view) | _consumer_json(found))
    else:
        _show_consumer(found, view)
    _end(view)


@consumers.command()
@click.argument("name")
@cluster_options
@click.option("--yes", is_flag=True, help="Ask no question.")
def forget(place: ClusterPlace, name: str, yes: bool) -> None:
    """Delete the marks that are kept of the consumer NAME.

    The log, and what the consumer has applied, stay as they are. Marks that are kept only grow: a
    consumer whose database was restored is forgotten here, and is kept anew from what it tells.
    """
    from waltz.cluster.consumers_shell import forget_consumer

    if not yes:
        click.confirm(f"delete the marks that are kept of {name!r}?", abort=True)

    async def work(host: Host, root: str) -> bool:
        return await forget_consumer(host.coordinator, name, root=root)

    if not place.run(work):
        raise NotFoundError(f"no marks of {name!r} are kept")
    click.echo(
        f"the marks of {name} are no longer kept; a client of that name that runs tells anew"
    )


def _read(place: ClusterPlace, *, everybody: bool) -> ConsumersView:
    from waltz.operators.named_consumers_shell import read_named_consumers

    async def work(host: Host, root: str) -> ConsumersView:
        return await read_named_consumers(host, root, everybody=everybody)

    return place.run(work)


def _end(view: ConsumersView) -> None:
    if not view.is_complete:
        sys.exit(exit_code(None))


# For people


def _show_list(view: ConsumersView) -> None:
    table = new_table(
        "consumer",
        "connected",
        "partitions",
        "behind",
        "lag",
        "kept",
        left=("consumer", "connected"),
    )
    for each in view.consumers:
        table.add_row(
            _name(each),
            _connected(each, view),
            str(len(each.partitions)),
            _behind(each),
            _lag(each),
            _time(each.last_known_milliseconds),
        )
    print_table(table)
    for each in view.consumers:
        if each.trouble is not None:
            click.echo(f"the kept marks of {_name(each)} cannot be read: {each.trouble}")
    _show_asked(view)


def _show_consumer(found: NamedConsumer, view: ConsumersView) -> None:
    click.echo(f"consumer {_name(found)}, {_connected(found, view)}\n")
    if found.trouble is not None:
        click.echo(f"its kept marks cannot be read: {found.trouble}\n")
    table = new_table("partition", "mark", "known", "log ends", "behind", "lag", left=("known",))
    for each in found.partitions:
        table.add_row(
            str(each.partition_id),
            _shown(each.mark),
            _known(each),
            _shown(each.high_water_mark),
            _behind(each),
            _lag(each),
        )
    print_table(table)
    if found.instances:
        click.echo()
        clients = new_table(
            *("instance", "client", "address", "principal", "program", "server", "heard"),
            *("partitions", "applied"),
            left=("instance", "address", "principal", "program", "server", "applied"),
        )
        for instance in found.instances:
            clients.add_row(*_instance_row(instance))
        print_table(clients)
    _show_asked(view)


def _instance_row(instance: ConsumerInstance) -> list[str]:
    client = instance.client
    heard = f"{client.heard_seconds:.0f} s ago"
    return [
        client.instance or "-",
        str(client.client_id),
        client.address,
        client.principal or "-",
        f"{client.program} {client.version}".strip() or "-",
        str(instance.server),
        heard if client.is_connected else f"{heard}, interrupted",
        str(len(client.mounts) + client.mounts_left_out),
        _applied(client),
    ]


def _applied(client: MountedClient) -> str:
    shown = client.mounts[:MOUNTS_SHOWN_MAX]
    left = len(client.mounts) + client.mounts_left_out - len(shown)
    marks = ", ".join(f"{each.partition_id}: {_shown(each.applied)}" for each in shown)
    return f"{marks}, {left} more" if left else marks


def _show_asked(view: ConsumersView) -> None:
    if view.age_seconds is not None:
        click.echo(f"\nservers' answers are {view.age_seconds:.1f} s old")
    _show_unasked(view)


def _show_unasked(view: ConsumersView) -> None:
    for address, reason in view.unasked.items():
        click.echo(f"server {address} could not be asked: {reason}", err=True)


def _name(found: NamedConsumer) -> str:
    if found.name is not None:
        return found.name
    return f"client {found.instances[0].client.client_id}, no name"


def _connected(found: NamedConsumer, view: ConsumersView) -> str:
    if found.instances:
        clients = {each.client.client_id for each in found.instances}
        return f"{len(clients)} connected"
    return "not connected" if view.is_complete else "not connected to servers that answered"


def _known(found: ConsumerPartition) -> str:
    if found.is_current:
        return "told now"
    if found.kept is not None and found.kept.transaction_id == found.mark:
        return f"kept {_time(found.kept.wall_milliseconds)}"
    return "never told" if found.mark is None else "told before"


def _shown(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _behind(found: NamedConsumer | ConsumerPartition) -> str:
    bound = "" if found.is_current or not found.lag_transactions else "at most "
    return UNKNOWN if found.lag_transactions is None else f"{bound}{found.lag_transactions}"


def _lag(found: NamedConsumer | ConsumerPartition) -> str:
    lag = found.lag
    if lag is None:
        return UNKNOWN
    if lag.most_seconds is None:
        return f"at least {lag.least_seconds:.1f} s"
    if not lag.most_seconds:
        return "0 s"
    return f"{'' if found.is_current else 'at most '}{lag.most_seconds:.1f} s"


def _time(milliseconds: int | None, precision: str = "seconds") -> str:
    """Return the time of the wall clock, in UTC."""
    if milliseconds is None:
        return "-"
    return moment(milliseconds, precision)


# For programs


def _view_json(view: ConsumersView) -> dict[str, Any]:
    return _asked_json(view) | {"consumers": [_consumer_json(each) for each in view.consumers]}


def _asked_json(view: ConsumersView) -> dict[str, Any]:
    return {
        "complete": view.is_complete,
        "answers_age_seconds": view.age_seconds,
        "servers_not_asked": {str(each): reason for each, reason in view.unasked.items()},
    }


def _consumer_json(found: NamedConsumer) -> dict[str, Any]:
    return {
        "name": found.name,
        "lag_transactions": found.lag_transactions,
        "lag_seconds": _lag_json(found.lag),
        "last_kept": _kept_json(found.last_known_milliseconds),
        "trouble": found.trouble,
        "partitions": [
            {
                "partition": each.partition_id,
                "mark": each.mark,
                "told_now": each.is_current,
                "kept_mark": None if each.kept is None else each.kept.transaction_id,
                "kept": None if each.kept is None else _kept_json(each.kept.wall_milliseconds),
                "high_water_mark": each.high_water_mark,
                "lag_transactions": each.lag_transactions,
                "lag_seconds": _lag_json(each.lag),
            }
            for each in found.partitions
        ],
        "clients": [_client_json(each.client, str(each.server)) for each in found.instances],
    }


def _client_json(client: MountedClient, server: str) -> dict[str, Any]:
    return {
        "server": server,
        "client_id": client.client_id,
        "instance": client.instance,
        "program": client.program,
        "version": client.version,
        "principal": client.principal or None,
        "address": client.address,
        "protocol_version": client.protocol_version,
        "connected": client.is_connected,
        "connected_seconds": client.connected_seconds,
        "heard_seconds": client.heard_seconds,
        "tells_marks": client.tells_marks,
        "mounts_left_out": client.mounts_left_out,
        "mounts": [
            {
                "partition": mount.partition_id,
                "applied": mount.applied,
                "told_seconds": mount.told_seconds,
                "sent": mount.sent,
                "lag_transactions": mount.lag_transactions,
                "lag_seconds": _lag_json(mount.lag),
                "writes": mount.writes,
            }
            for mount in client.mounts
        ],
    }


def _lag_json(lag: Lag | None) -> dict[str, float | None] | None:
    return None if lag is None else {"least": lag.least_seconds, "most": lag.most_seconds}


def _kept_json(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else _time(milliseconds, "milliseconds")
