"""The report: one HTML file that needs nothing else. It tells the story of the log, its proofs, and
the figures of the flights."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple

from matplotlib.dates import ConciseDateFormatter
from matplotlib.ticker import MaxNLocator

from demo.cluster import Member
from demo.flights import flights_file
from demo.story import Moment
from demo.submission import Submission
from demo.verify import Tables
from waltz.spark.pipelines.page import (
    BLUE,
    RED,
    SAND,
    cards,
    definitions,
    drawing,
    page,
    section,
    table,
    timeline,
    verdict,
)

YEAR: Final = 2013


class Proof(NamedTuple):
    """A claim about the run that was checked: how, and with which result."""

    claim: str
    how: str
    result: str


def write_report(
    path: Path,
    tables: Tables,
    *,
    proofs: Sequence[Proof],
    moments: Sequence[Moment],
    members: Sequence[Member],
    submission: Submission,
) -> None:
    """Write the report to `path`; to be called only once everything was compared and agrees.

    proofs   what was checked, each with its result.
    moments  the story of the run, in its order.
    members  the processes of the cluster at the end of the run.
    """
    by_carrier = tables.rows("by_carrier")
    by_day = tables.rows("by_day")
    names = carrier_names()
    flights = sum(row["flights"] for row in by_carrier)
    days = sorted(date(YEAR, row["month"], row["day"]) for row in by_day)
    period = f"{days[0]:%-d %B %Y} to {days[-1]:%-d %B %Y}"
    sections = [
        verdict("Everything agrees", f"{sentence(proofs[-1].result)}."),
        definitions(figures(submission)),
        section(
            "The story of this log",
            "Seconds since the start of the run.",
            timeline(
                (each.at_seconds, sentence(each.text), each.phase == "kill") for each in moments
            ),
        ),
        section(
            "Commits while a storage node dies",
            "Transactions decided per second. The line marks where"
            f" {submission.storage} was killed.",
            drawing(
                lambda axes: draw_rates(axes, submission.rates, submission.killed_at), height=2.6
            ),
        ),
        section(
            "What was proved",
            "Each proof reads all of the data again. Quantiles of delays, below, are"
            " approximations and were not proved.",
            cards(proofs),
        ),
        section(
            "The cluster",
            "Its processes at the end of the run, and how often each was started again.",
            table(
                ("Process", "Role", "Address", "Restarts"),
                [(each.name, each.role, each.address, str(each.restarts)) for each in members],
            ),
        ),
        section(
            "Flights and cancellations",
            "Flights per day, and how many of them were cancelled.",
            drawing(lambda axes: draw_days(axes, by_day), height=2.8),
        ),
        section(
            "Delay over the day",
            "Departure delay by the hour of scheduled departure: half, nine in ten and"
            " ninety-nine in a hundred flights were better than the line.",
            drawing(lambda axes: draw_hours(axes, tables.rows("by_hour"))),
        ),
        section(
            "Delay by airport",
            "Nine in ten departures were better than this, by airport and hour.",
            drawing(lambda axes: draw_origins(axes, tables.rows("by_origin_and_hour"))),
        ),
        section(
            "Carriers",
            "Delays in minutes: the median, and the 90th percentile.",
            carrier_table(by_carrier, names),
        ),
        section(
            "Legs per aircraft",
            "Aircraft by the number of legs they left New York for. Each leg was numbered under"
            " its aircraft's lock by one of the writing processes.",
            drawing(lambda axes: draw_aircraft(axes, tables.rows("by_aircraft")), height=2.6),
        ),
    ]
    subtitle = (
        f"The flights that left New York from {period}. Each is a transaction in a replicated"
        " log, written by four processes under a lock on its aircraft, applied to a database"
        " exactly once, and turned into tables by Spark, while one storage node was killed."
    )
    path.write_text(page(f"{flights:,} flights through one log", subtitle, sections))


def sentence(text: str) -> str:
    """Return `text` with a capital letter."""
    return text[:1].upper() + text[1:]


def figures(submission: Submission) -> list[tuple[str, str]]:
    """Return the figures of the run, as label and value."""
    return [
        ("transactions", f"{submission.counts['applied']:,}"),
        ("per second", f"{submission.transactions_per_second:,.0f}"),
        ("refused by a lock, tried again", f"{submission.counts['conflicts']:,}"),
        ("storage node killed", submission.storage),
        ("longest pause of a writer after it", f"{submission.pause_seconds * 1000:,.0f} ms"),
        ("storage node back after", f"{submission.restart_seconds * 1000:,.0f} ms"),
    ]


def draw_days(axes: Any, by_day: Sequence[dict[str, Any]]) -> None:
    rows = sorted(by_day, key=lambda row: (row["month"], row["day"]))
    days = [date(YEAR, row["month"], row["day"]) for row in rows]
    axes.bar(days, [row["flights"] for row in rows], width=1.0, color="#c9d8ea", label="flights")
    axes.bar(days, [row["cancelled"] for row in rows], width=1.0, color=RED, label="cancelled")
    locator = axes.xaxis.get_major_locator()
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.15))


def draw_hours(axes: Any, by_hour: Sequence[dict[str, Any]]) -> None:
    rows = [row for row in sorted(by_hour, key=lambda row: row["hour"]) if row["departure_delay"]]
    hours = [row["hour"] for row in rows]
    for index, (label, colour) in enumerate(
        (("half", BLUE), ("9 in 10", SAND), ("99 in 100", RED))
    ):
        delays = [row["departure_delay"][index] for row in rows]
        axes.plot(hours, delays, color=colour, linewidth=2)
        axes.annotate(
            label, (hours[-1], delays[-1]), (6, 0), textcoords="offset points", color=colour
        )
    axes.set_xlabel("hour of scheduled departure")
    axes.set_ylabel("minutes")
    axes.set_xticks(hours)


def draw_origins(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    for origin, colour in zip(("EWR", "JFK", "LGA"), (BLUE, SAND, RED), strict=True):
        line = sorted(
            (row["hour"], row["departure_delay"][1])
            for row in rows
            if row["origin"] == origin and row["departure_delay"]
        )
        if line:
            axes.plot(*zip(*line, strict=True), color=colour, linewidth=2, label=origin)
    axes.set_xlabel("hour of scheduled departure")
    axes.set_ylabel("minutes")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()


def draw_aircraft(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    legs = [row["legs"] for row in rows]
    top = max(legs)
    bins = [2**k for k in range(math.ceil(math.log2(top + 1)) + 1)]
    axes.hist(legs, bins=bins, color="#c9d8ea", edgecolor="white")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.set_xlabel("legs")
    axes.set_ylabel("aircraft")


def draw_rates(axes: Any, rates: Sequence[tuple[float, float]], killed_at: float | None) -> None:
    if rates:
        seconds, values = zip(*rates, strict=True)
        axes.fill_between(seconds, values, color="#c9d8ea", step="mid")
    if killed_at is not None:
        axes.axvline(killed_at, color=RED, linewidth=1.5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since the first flight was submitted")
    axes.set_ylabel("transactions/s")


def carrier_table(rows: Sequence[dict[str, Any]], names: dict[str, str]) -> str:
    heading = ("Carrier", "Flights", "Cancelled", "Departure", "9 in 10", "Arrival", "9 in 10")
    cells = (
        (
            names.get(row["carrier"], row["carrier"]),
            f"{row['flights']:,}",
            f"{row['cancelled'] / row['flights']:.1%}",
            *(str(delay) for delay in (row["departure_delay"] or ("", ""))[:2]),
            *(str(delay) for delay in (row["arrival_delay"] or ("", ""))[:2]),
        )
        for row in sorted(rows, key=lambda row: -row["flights"])
    )
    return table(heading, cells)


def carrier_names() -> dict[str, str]:
    """Return the names that come with the flights, by carrier code."""
    with (flights_file().parent / "airlines.csv").open(newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}
