"""The transaction that `waltz tail` begins with in each partition.

Owns the words, IDs and times that a user may give, and what is said where nobody knows which
transactions belong to a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

import waltz
from waltz.cli.moments import moment

if TYPE_CHECKING:
    from waltz.operators.log_times_shell import AsyncLogTimes, TransactionAt

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
ID_DIGITS_MAX: Final = 18
"""Digits of a transaction ID; each number of that length fits the 64 bits of the protocol."""

AGE: Final = re.compile(r"([0-9]{1,9})([smhd])")
UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
PROBLEMS_SHOWN: Final = 3
"""Storage nodes whose reasons for telling nothing are printed."""


@dataclass(frozen=True, slots=True)
class Since:
    """The transactions of a time and later."""

    moment: datetime

    @property
    def text(self) -> str:
        return moment((self.moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1))


Start = str | int | Since


class StartType(click.ParamType[Start]):
    """The first transaction to print: its ID, a word, an age or a time."""

    name = "earliest|latest|ID|AGE|TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Start:
        text = str(value)
        if text in (EARLIEST, LATEST):
            return text
        if text.isascii() and text.isdigit() and len(text) <= ID_DIGITS_MAX:
            return int(text)
        now = datetime.now(UTC)
        if (age := AGE.fullmatch(text)) is not None:
            try:
                return Since(now - timedelta(**{UNITS[age[2]]: int(age[1])}))
            except OverflowError:
                self.fail(f"{text!r} is before any calendar", param, ctx)
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{text!r}; expected earliest, latest or a transaction ID, an age such as 90s, 2h"
                " or 3d, or a time such as 2026-11-24T10:00Z",
                param,
                ctx,
            )
        if found.tzinfo is None:
            self.fail(f"{text!r} has no time zone; add Z for UTC, or +02:00", param, ctx)
        if found > now:
            self.fail(
                f"{text!r} is in the future by this machine's clock, which shows"
                f" {now.isoformat(timespec='seconds')}",
                param,
                ctx,
            )
        try:
            # The places of a time are asked for from just before it.
            return Since(found.astimezone(UTC) - timedelta(days=1) + timedelta(days=1))
        except OverflowError:
            self.fail(f"{text!r} is before any calendar", param, ctx)


async def first_ids(
    reader: waltz.AsyncLogReader,
    partition_ids: Sequence[waltz.PartitionId],
    start: Start,
    last: int | None,
    times: AsyncLogTimes | None,
    say: Callable[[str], None],
) -> Mapping[waltz.PartitionId, int]:
    """Return the first transaction to print of each partition; a time needs `times`. With `last` it
    is among the last `last` transactions of its partition, or follows the end.

    What a user should know of a time is passed to `say`. Raises NotFoundError: nobody knows which
    transactions belong to a time.
    """
    if last is None and isinstance(start, int):
        return dict.fromkeys(partition_ids, start)
    if last is None and start == EARLIEST:
        return dict.fromkeys(partition_ids, 0)
    marks = await reader.high_water_marks(partition_ids)
    count = last or 0
    newest = {each: max(0, mark + 1 - count) for each, mark in marks.items()}
    if start in (LATEST, EARLIEST):
        return newest
    if isinstance(start, int):
        return {each: max(start, first) for each, first in newest.items()}
    assert isinstance(start, Since)
    assert times is not None
    # One that was committed at that very millisecond belongs to it.
    places = await times.transactions_at(start.moment - timedelta(milliseconds=1), marks)
    firsts = {}
    for partition_id, place in places.items():
        mark = marks[partition_id]
        if place.first == 0 and place.later is None and mark >= 0:
            times_of_mark = await times.time_of(partition_id, mark)
            if times_of_mark.not_after is None:
                raise waltz.NotFoundError(
                    f"nobody knows which transactions of partition {partition_id} are of"
                    f" {start.text} or later{_reasons(place)}; give --from a transaction ID,"
                    " earliest or latest"
                )
        first = int(place.first) if last is None else max(place.first, newest[partition_id])
        if text := said_of(partition_id, mark, place, start, first):
            say(text)
        firsts[partition_id] = first
    return firsts


def said_of(partition_id: int, mark: int, place: TransactionAt, start: Since, first: int) -> str:
    """Return what a user should know of a place from which the transactions from `first` on are
    printed; empty if these are all known to belong to it."""
    if mark < 0 or place.first > mark:
        return ""
    if place.later == 0:
        if first > 0:
            return ""
        return (
            f"partition {partition_id} begins after {start.text}: it is printed from its first"
            " transaction on"
        )
    last = mark if place.later is None else place.later - 1
    if last < first:
        return ""
    which = f"transaction {last}" if last == first else f"transactions {first} to {last}"
    return (
        f"partition {partition_id}: {which} may be older than {start.text}: nobody knows"
        f"{_reasons(place)}"
    )


def _reasons(place: TransactionAt) -> str:
    shown = list(place.problems.values())[:PROBLEMS_SHOWN]
    return f" ({'; '.join(shown)})" if shown else ""
