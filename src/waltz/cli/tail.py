"""`waltz tail`: the transactions of one partition, several, or all, as lines or as JSON."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final

import click

import waltz
from waltz.cli.author_text import author_name, author_values
from waltz.cli.cluster_place import ClusterPlace, LogPlace, log_options
from waltz.cli.moments import moment
from waltz.cli.nodes import run_loop
from waltz.cli.tail_order import LONG_AGO, NEVER, LeftOut, TimeOrder
from waltz.cli.tail_start import LATEST, Since, Start, StartType, first_ids
from waltz.log_fields import printable

if TYPE_CHECKING:
    from waltz.cli.tail_facts import TailFacts
    from waltz.operators.authors import Author
    from waltz.operators.log_times_shell import AsyncLogTimes

REQUEST_ID: Final = struct.Struct(">4i")


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Between these times, in milliseconds since 1970, a transaction was committed; LONG_AGO and
    NEVER: that is not recorded."""

    not_before: int
    not_after: int

    def text(self) -> str:
        if self.not_before == LONG_AGO and self.not_after == NEVER:
            return "not recorded"
        if self.not_after == NEVER:
            return f"from {moment(self.not_before)}"
        if self.not_before == LONG_AGO:
            return f"until {moment(self.not_after)}"
        return f"{moment(self.not_before)} to {moment(self.not_after)}"


@dataclass(frozen=True, slots=True)
class RowFacts:
    """The times and authors of the transactions of a run; None: these are not shown.

    bounds   the times of each.
    authors  the client of each; None where it is unknown.
    """

    bounds: Sequence[TimeBounds] | None = None
    authors: Sequence[Author | None] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A transaction to print. `is_ordered`: no line of another partition before it is newer."""

    partition_id: int
    transaction_id: int
    header: int
    data: bytes
    request_id: waltz.RequestId
    bounds: TimeBounds | None = None
    shows_author: bool = False
    author: Author | None = None
    is_ordered: bool = True


def rows_of(
    partition_id: int, run: waltz.TransactionColumns, facts: RowFacts | None = None
) -> Iterator[Row]:
    """Yield the transactions of `run`, with what is known of them."""
    facts = facts or RowFacts()
    columns = zip(run.headers.tolist(), run.data, request_ids_of(run), strict=True)
    for index, (header, data, request_id) in enumerate(columns):
        yield Row(
            partition_id,
            run.first_transaction_id + index,
            header,
            data,
            request_id,
            None if facts.bounds is None else facts.bounds[index],
            facts.authors is not None,
            None if facts.authors is None else facts.authors[index],
        )


@dataclass(frozen=True, slots=True)
class Style:
    """The form of a line; `shows_partition` if lines of several partitions mix."""

    as_json: bool
    shows_partition: bool
    shows_request_id: bool

    def line(self, row: Row) -> str:
        """Return a transaction as a line."""
        return (self._json(row) if self.as_json else self._text(row)) + "\n"

    def _text(self, row: Row) -> str:
        columns = [str(row.partition_id)] if self.shows_partition else []
        columns += [str(row.transaction_id), str(row.header)]
        if self.shows_request_id:
            columns.append("/".join(map(str, row.request_id)))
        if row.bounds is not None:
            columns.append(("" if row.is_ordered else "~ ") + row.bounds.text())
        if row.shows_author:
            columns.append(author_name(row.request_id.client_id, row.author))
        # An end of line in the data would begin a line that looks like another transaction.
        return "\t".join([*columns, printable(row.data.decode(errors="backslashreplace"))])

    def _json(self, row: Row) -> str:
        value: dict[str, Any] = {
            "partition": row.partition_id,
            "transaction_id": row.transaction_id,
            "header": row.header,
            "request_id": row.request_id._asdict(),
            "data": row.data.decode(errors="backslashreplace"),
        }
        if row.bounds is not None:
            low, high = row.bounds.not_before, row.bounds.not_after
            value["not_before"] = None if low == LONG_AGO else moment(low)
            value["not_after"] = None if high == NEVER else moment(high)
            value["ordered"] = row.is_ordered
        if row.shows_author:
            value["author"] = author_values(row.author)
        try:
            row.data.decode()
        except UnicodeDecodeError:
            value["data_base64"] = base64.b64encode(row.data).decode()
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
    help="Transaction to begin with: an ID, the first that may be of a time such as"
    " 2026-11-24T10:00Z, or not older than an age: 90s, 30m, 2h, 3d.",
)
@click.option(
    "-n",
    "--last",
    type=click.IntRange(min=0),
    help="Print the last N of what there is now: of each partition, or with --time of all.",
)
@click.option(
    "--follow/--no-follow", default=True, show_default=True, help="Wait for new transactions."
)
@click.option("--request-ids", is_flag=True, help="Print client/generation/partition/sequence.")
@click.option(
    "--time",
    "shows_time",
    is_flag=True,
    help="Print between which times each was committed, and put partitions into one order.",
)
@click.option(
    "--author",
    "shows_author",
    is_flag=True,
    help="Print the name of the client that wrote each, as far as anybody knows it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per transaction.")
def tail(
    place: LogPlace,
    partitions: tuple[int, ...],
    start: Start,
    last: int | None,
    follow: bool,
    request_ids: bool,
    shows_time: bool,
    shows_author: bool,
    as_json: bool,
) -> None:
    """Print the transactions of partitions, one a line: ID, header, data. Characters of the data
    that a terminal should not get are escaped.

    The partition comes first in a line unless exactly one is named. With --time the interval in
    which it was committed comes before the data, UTC, by the clocks of the storage nodes. Then what
    several partitions hold now is printed in one order; "~" before the time says that a line of
    another partition above may be newer. What comes while it follows is printed as it comes.

    -n counts per partition; with --time it counts the lines of the one order, and "~" heeds those
    that it leaves out. If one of these may be newer than a line that is printed, this is said on
    standard error.

    With --author the name comes before the data: of the client that a journal noted by the time of
    the record, or else that has its ID now. For times and names the coordinator must be reachable.
    """
    style = Style(as_json, len(partitions) != 1, request_ids)
    needs_nodes = shows_time or shows_author or isinstance(start, Since)
    nodes = place.with_coordinator() if needs_nodes else None
    shown = Shown(shows_time, shows_author, nodes)
    run_loop(print_log(place, partitions, start, last, style, follow=follow, shown=shown))


@dataclass(frozen=True, slots=True)
class Shown:
    """The facts that are printed besides the transactions, and the cluster that is asked for
    them."""

    time: bool = False
    author: bool = False
    nodes: ClusterPlace | None = None


async def print_log(
    place: LogPlace,
    partitions: tuple[int, ...],
    start: Start,
    last: int | None,
    style: Style,
    *,
    follow: bool,
    shown: Shown = Shown(),
) -> None:
    """Print the transactions; with `follow`, until this is cancelled.

    Without `follow` and without times the partitions come one after the other, each to the end that
    it had when its turn came. With times they come in one order, each to the end that it had at the
    beginning; what comes after that is not put in order. `last` bounds what is printed of each
    partition, or if they come in one order of all.
    """
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(
            waltz.open_async_reader(place.cluster, tls=place.tls)
        )
        facts: TailFacts | None = None
        times: AsyncLogTimes | None = None
        if shown.nodes is not None:
            # Only a command that shows times or authors talks to storage nodes.
            from waltz.cli.tail_facts import TailFacts
            from waltz.operators.log_times_shell import AsyncLogTimes

            host = await stack.enter_async_context(shown.nodes.host())
            times = AsyncLogTimes(host, shown.nodes.root)
            stack.push_async_callback(times.close)
            if shown.time or shown.author:
                facts = TailFacts(host, shown.nodes.root, times, shown.time, shown.author)
        named = [waltz.PartitionId(each) for each in partitions or range(reader.partition_count)]
        named = list(dict.fromkeys(named))
        firsts = dict(await first_ids(reader, named, start, last, times, _say))
        if shown.time and len(named) > 1:
            ends = {
                each: max(firsts[each], mark + 1)
                for each, mark in (await reader.high_water_marks(named)).items()
            }
            assert facts is not None
            left_out = await print_in_order(reader, firsts, ends, style, facts, last)
            if (count := left_out.newer_count()) > 0:
                _say(newer_text(count))
            firsts = ends
            if not follow:
                return
        if follow:
            await asyncio.gather(
                *(
                    print_runs(each, reader.follow(each, first), style, facts)
                    for each, first in firsts.items()
                )
            )
            return
        for each, first in firsts.items():
            end = await reader.high_water_mark(each) + 1
            if first > end:
                raise waltz.NotFoundError(
                    f"partition {each} ends with transaction {end - 1}; there is none from"
                    f" {first} on"
                )
            if last is not None:  # what came after the beginning is not among the last
                end = min(end, first + last)
            await print_runs(each, reader.read(each, first, end), style, facts)


def newer_text(count: int) -> str:
    """Return what is said of transactions that -n leaves out and that may belong to the last."""
    which = "1 transaction" if count == 1 else f"{count} transactions"
    return (
        f"at least {which} that -n leaves out may be newer than a line above: the times overlap, or"
        " are not recorded"
    )


def _say(text: str) -> None:
    click.echo(f"waltz: {text}", err=True)


async def print_runs(
    partition_id: int,
    runs: AsyncIterator[waltz.TransactionColumns],
    style: Style,
    facts: TailFacts | None = None,
) -> None:
    """Print `runs`, each as soon as it is there, and what is shown of it is known."""
    async for run in runs:
        told = None if facts is None else await facts.of_run(partition_id, run)
        sys.stdout.write("".join(map(style.line, rows_of(partition_id, run, told))))
        sys.stdout.flush()


async def print_in_order(
    reader: waltz.AsyncLogReader,
    firsts: dict[waltz.PartitionId, int],
    ends: dict[waltz.PartitionId, int],
    style: Style,
    facts: TailFacts,
    last: int | None = None,
) -> LeftOut[int]:
    """Print what the partitions hold in the order of its times, at most the last `last` if that is
    not None; return what was left out. A run of each partition is held at once."""
    order: TimeOrder[int] = TimeOrder()
    left_out: LeftOut[int] = LeftOut()
    count = sum(ends[each] - first for each, first in firsts.items())
    skipped = 0 if last is None else max(0, count - last)
    waiting: dict[int, list[Row]] = {}
    async with AsyncExitStack() as stack:
        runs = {
            each: await stack.enter_async_context(aclosing(reader.read(each, first, ends[each])))
            for each, first in firsts.items()
        }

        async def fetch(partition_id: waltz.PartitionId) -> None:
            run = await anext(runs[partition_id], None)
            if run is None:
                waiting[partition_id] = []
                order.end(partition_id)
                return
            told = await facts.of_run(partition_id, run)
            rows = waiting[partition_id] = list(rows_of(partition_id, run, told))
            bounds = [each.bounds for each in rows if each.bounds is not None]
            order.add(
                partition_id,
                [each.not_before for each in bounds],
                [each.not_after for each in bounds],
            )

        await asyncio.gather(*map(fetch, firsts))
        lines: list[str] = []
        while (taken := order.take()) is not None:
            partition_id, place, is_ordered = taken
            rows = waiting[partition_id]
            row = rows[place]
            assert row.bounds is not None
            if skipped:
                skipped -= 1
                left_out.leave(partition_id, row.bounds.not_after)
            else:
                left_out.show(partition_id, row.bounds.not_before)
                lines.append(style.line(replace(row, is_ordered=is_ordered)))
            if place + 1 == len(rows):
                sys.stdout.write("".join(lines))
                sys.stdout.flush()
                lines.clear()
                await fetch(waltz.PartitionId(partition_id))
    return left_out
