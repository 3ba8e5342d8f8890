"""`waltz tail`: the transactions of one partition, several, or all, as lines or as JSON."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

import click

import waltz
from waltz.cli.cluster_place import ClusterPlace, LogPlace, log_options
from waltz.cli.moments import moment
from waltz.cli.nodes import run_loop

if TYPE_CHECKING:
    from waltz.cli.journal_times import JournalTimes, RunTimes

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
class TimeBounds:
    """Between these times, in milliseconds since 1970, a majority of the copies came to be there;
    None: that is not recorded."""

    not_before: int | None
    not_after: int | None

    def text(self) -> str:
        if self.not_before is None and self.not_after is None:
            return "not recorded"
        if self.not_after is None:
            return f"from {moment(self.not_before or 0)}"
        if self.not_before is None:
            return f"until {moment(self.not_after)}"
        return f"{moment(self.not_before)} to {moment(self.not_after)}"


@dataclass(frozen=True, slots=True)
class Style:
    """The form of a line; `shows_partition` if lines of several partitions mix."""

    as_json: bool
    shows_partition: bool
    shows_request_id: bool

    def lines(
        self, partition_id: int, run: waltz.TransactionColumns, times: RunTimes | None = None
    ) -> str:
        """Return a line per transaction of `run`, with `times` if these are shown."""
        shown = self._json if self.as_json else self._text
        return "".join(
            shown(
                partition_id,
                run.first_transaction_id + index,
                header,
                data,
                request_id,
                None if times is None else times.bounds(run.first_transaction_id + index),
            )
            + "\n"
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
        bounds: TimeBounds | None,
    ) -> str:
        fields = [transaction_id, header]
        columns = [str(each) for each in ([partition_id] if self.shows_partition else []) + fields]
        if self.shows_request_id:
            columns.append("/".join(map(str, request_id)))
        if bounds is not None:
            columns.append(bounds.text())
        return "\t".join([*columns, data.decode(errors="backslashreplace")])

    def _json(
        self,
        partition_id: int,
        transaction_id: int,
        header: int,
        data: bytes,
        request_id: waltz.RequestId,
        bounds: TimeBounds | None,
    ) -> str:
        value: dict[str, Any] = {
            "partition": partition_id,
            "transaction_id": transaction_id,
            "header": header,
            "request_id": request_id._asdict(),
            "data": data.decode(errors="backslashreplace"),
        }
        if bounds is not None:
            value["not_before"] = bounds.not_before and moment(bounds.not_before)
            value["not_after"] = bounds.not_after and moment(bounds.not_after)
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
@click.option(
    "--time",
    "times",
    is_flag=True,
    help="Ask the storage nodes between which times a majority of copies got each.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per transaction.")
def tail(
    place: LogPlace,
    partitions: tuple[int, ...],
    start: str | int,
    last: int | None,
    follow: bool,
    request_ids: bool,
    times: bool,
    as_json: bool,
) -> None:
    """Print the transactions of partitions, one a line: ID, header, data.

    The partition comes first in a line unless exactly one is named. With --time the time comes
    before the data, UTC, by the clocks of the storage nodes: from which time on a majority of the
    copies that are there now was there. For that the coordinator must be reachable.
    """
    if last is not None and start != LATEST:
        raise click.UsageError("-n and --from exclude each other")
    style = Style(as_json, len(partitions) != 1, request_ids)
    found = place.with_coordinator() if times else None
    run_loop(print_log(place, partitions, start, last or 0, style, follow=follow, nodes=found))


async def print_log(
    place: LogPlace,
    partitions: tuple[int, ...],
    start: str | int,
    last: int,
    style: Style,
    *,
    follow: bool,
    nodes: ClusterPlace | None = None,
) -> None:
    """Print the transactions; with `follow`, until this is cancelled. Times are asked of the
    storage nodes of the cluster at `nodes`.

    Without `follow` the partitions come one after the other, each to the end that it had when its
    turn came.
    """
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(
            waltz.open_async_reader(place.cluster, tls=place.tls)
        )
        times = None
        if nodes is not None:
            # Only a command that shows times talks to storage nodes.
            from waltz.cli.journal_times import JournalTimes

            times = JournalTimes(await stack.enter_async_context(nodes.host()), nodes.root)
            stack.push_async_callback(times.close)
        named = partitions or range(reader.partition_count)
        firsts = [await first_of(reader, each, start, last) for each in named]
        if follow:
            await asyncio.gather(
                *(
                    print_runs(each, reader.follow(each, first), style, times)
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
            await print_runs(each, reader.read(each, first, end), style, times)


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
    partition_id: int,
    runs: AsyncIterator[waltz.TransactionColumns],
    style: Style,
    times: JournalTimes | None = None,
) -> None:
    """Print `runs`, each as soon as it is there, and its times are known if they are shown."""
    async for run in runs:
        first = run.first_transaction_id
        told = None
        if times is not None:
            told = await times.of_run(partition_id, first, first + len(run.data))
        sys.stdout.write(style.lines(partition_id, run, told))
        sys.stdout.flush()
