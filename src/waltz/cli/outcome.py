"""`waltz outcome`: the outcome of an append whose answer was lost."""

from __future__ import annotations

import json

import click

import waltz
from waltz.cli.cluster_place import LogPlace, log_options
from waltz.types import ClientId, Generation


class RequestIdType(click.ParamType):  # type: ignore[type-arg]
    """Client ID, generation, partition and sequence number, as errors print them."""

    name = "request ID"

    def convert(
        self, value: str, parameter: click.Parameter | None, context: click.Context | None
    ) -> waltz.RequestId:
        try:
            client, generation, partition, number = map(int, value.split(":"))
        except ValueError:
            self.fail(f"{value!r}; expected client:generation:partition:number", parameter, context)
        if not all(
            -(1 << 31) <= each < 1 << 31 for each in (client, generation, partition, number)
        ):
            self.fail(f"{value!r}: no client has such numbers: 32 bits each", parameter, context)
        return waltz.RequestId(
            ClientId(client), Generation(generation), waltz.PartitionId(partition), number
        )


@click.command()
@log_options
@click.option(
    "--after",
    type=click.IntRange(min=-1),
    default=-1,
    show_default=True,
    help="Transaction after which to search the log; the append is not looked for before it.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0.001),
    default=60.0,
    show_default=True,
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.argument("request_id", type=RequestIdType())
def outcome(
    place: LogPlace,
    after: int,
    timeout_seconds: float,
    as_json: bool,
    request_id: waltz.RequestId,
) -> None:
    """Print the outcome of the append with that REQUEST_ID: its transaction ID, or that it is not
    in the log, after the transaction of --after if that is given, and never will be."""
    with waltz.open_client(place.cluster, waltz.NoCallbacks(), tls=place.tls) as client:
        found = client.outcome(request_id, after, timeout_seconds=timeout_seconds)
    if as_json:
        value = {"partition": request_id.partition_id, "transaction_id": found}
        click.echo(json.dumps(value if after < 0 else value | {"after": after}))
    else:
        where = "the log" if after < 0 else f"the log after transaction {after}"
        click.echo(f"not in {where}, and never will be" if found is None else found)
