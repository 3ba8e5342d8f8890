"""`waltz tail`: the transactions of one partition, several, or all, as lines or as JSON."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Final

import click

import waltz
from waltz.cli.cluster_place import LogPlace, log_options
from waltz.cli.nodes import run_loop

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
ID_DIGITS_MAX: Final = 18
"""Digits of a transaction ID; each number of that length fits the 64 bits of the protocol."""

REQUEST_ID: Final = struct.Struct(">4i")


class StartType(click.ParamType[str | int]):
    """The first transaction to print: its ID, or a word."""

    name = "earliest|latest|ID"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | int:
        text = str(value)
        if text in (EARLIEST, LATEST):
            return text
        if not (text.isascii() and text.isdigit() and len(text) <= ID_DIGITS_MAX):
            self.fail(f"{text!r}; expected earliest, latest or a transaction ID", param, ctx)
        return int(text)


@dataclass(frozen=True, slots=True)
class Style:
    """The form of a line; `shows_partition` if lines of several partitions mix."""

    as_json: bool
    shows_partition: bool
    shows_request_id: bool

    def lines(self, partition_id: int, run: waltz.TransactionColumns) -> str:
        """Return a line per transaction of `run`."""
        shown = self._json if self.as_json else self._text
        return "".join(
            shown(partition_id, run.first_transaction_id + index, header, data, request_id) + "\n"
            for index, (header, data, request_id) in enumerate(
                zip(run.headers.tolist(), run.data, request_ids_of(run), strict=True)
            )
        )

    def _text(
        self,
        partition_id: int,
        transaction_id: int,
        header: int,
        data: bytes,
        request_id: waltz.RequestId,
    ) -> str:
        fields = [transaction_id, header]
        columns = [str(each) for each in ([partition_id] if self.shows_partition else []) + fields]
        if self.shows_request_id:
            columns.append("/".join(map(str, request_id)))
        return "\t".join([*columns, data.decode(errors="backslashreplace")])

    def _json(
        self,
        partition_id: int,
        transaction_id: int,
        header: int,
        data: bytes,
        request_id: waltz.RequestId,
    ) -> str:
        value: dict[str, Any] = {
            "partition": partition_id,
            "transaction_id": transaction_id,
            "header": header,
            "request_id": request_id._asdict(),
            "data": data.decode(errors="backslashreplace"),
        }
        try:
            data.decode()
        except UnicodeDecodeError:
            value["data_base64"] = base64.b64encode(data).decode()
        return json.dumps(value)


def request_ids_of(run: waltz.TransactionColumns) -> Iterator[waltz.RequestId]:
    """Yield the request ID of each transaction of `run`."""
    return starmap(waltz.RequestId, REQUEST_ID.iter_unpack(run.request_ids))


@click.command()
@log_options
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="May be repeated; default: all partitions.",
)
@click.option(
    "--from",
    "start",
    type=StartType(),
    default=LATEST,
    show_default=True,
    help="Transaction to begin with.",
)
@click.option(
    "-n",
    "--last",
    type=click.IntRange(min=0),
    help="Begin with the last N transactions of each partition.",
)
@click.option(
    "--follow/--no-follow", default=True, show_default=True, help="Wait for new transactions."
)
@click.option("--request-ids", is_flag=True, help="Print client/generation/partition/sequence.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per transaction.")
def tail(
    place: LogPlace,
    partitions: tuple[int, ...],
    start: str | int,
    last: int | None,
    follow: bool,
    request_ids: bool,
    as_json: bool,
) -> None:
    """Print the transactions of partitions, one a line: ID, header, data.

    The partition comes first in a line unless exactly one is named.
    """
    if last is not None and start != LATEST:
        raise click.UsageError("-n and --from exclude each other")
    style = Style(as_json, len(partitions) != 1, request_ids)
    run_loop(print_log(place, partitions, start, last or 0, style, follow=follow))


async def print_log(
    place: LogPlace,
    partitions: tuple[int, ...],
    start: str | int,
    last: int,
    style: Style,
    *,
    follow: bool,
) -> None:
    """Print the transactions; with `follow`, until this is cancelled.

    Without it the partitions come one after the other, each to the end that it had when its turn
    came.
    """
    async with waltz.open_async_reader(place.cluster, tls=place.tls) as reader:
        named = partitions or range(reader.partition_count)
        firsts = [await first_of(reader, each, start, last) for each in named]
        if follow:
            await asyncio.gather(
                *(
                    print_runs(each, reader.follow(each, first), style)
                    for each, first in zip(named, firsts, strict=True)
                )
            )
            return
        for each, first in zip(named, firsts, strict=True):
            end = await reader.high_water_mark(each) + 1
            if first > end:
                raise waltz.NotFoundError(
                    f"partition {each} ends with transaction {end - 1}; there is none from"
                    f" {first} on"
                )
            await print_runs(each, reader.read(each, first, end), style)


async def first_of(
    reader: waltz.AsyncLogReader, partition_id: int, start: str | int, last: int
) -> int:
    """Return the ID of the first transaction to print."""
    if isinstance(start, int):
        return start
    if start == EARLIEST:
        return 0
    return max(0, await reader.high_water_mark(partition_id) + 1 - last)


async def print_runs(
    partition_id: int, runs: AsyncIterator[waltz.TransactionColumns], style: Style
) -> None:
    """Print `runs`, each as soon as it is there."""
    async for run in runs:
        sys.stdout.write(style.lines(partition_id, run))
        sys.stdout.flush()
