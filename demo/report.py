"""The report: one HTML file that needs nothing else; what the flights say and how the run went."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

from matplotlib.dates import ConciseDateFormatter
from matplotlib.ticker import MaxNLocator

from demo.flights import flights_file
from demo.verify import Tables
from waltz.spark.pipelines.page import BLUE, RED, SAND, definitions, drawing, page, section, table

YEAR: Final = 2013


def write_report(
    path: Path,
    tables: Tables,
    *,
    facts: Sequence[tuple[str, str]],
    rates: Sequence[tuple[float, float]],
    killed_at: float | None,
) -> None:
    """Write the report to `path`.

    facts      what the run came to, as label and value.
    rates      seconds since the start, and transactions per second then.
    killed_at  when a storage node was killed, in the same seconds.
    """
    by_carrier = tables.rows("by_carrier")
    by_day = tables.rows("by_day")
    names = carrier_names()
    flights = sum(row["flights"] for row in by_carrier)
    sections = [
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
            "Delays in minutes: the middle one, and what nine in ten stayed below.",
            carrier_table(by_carrier, names),
        ),
        section(
            "Legs per aircraft",
            "Aircraft by the number of legs they left New York for. Each leg was numbered under"
            " its aircraft's lock, by whichever process had it in hand.",
            drawing(lambda axes: draw_aircraft(axes, tables.rows("by_aircraft")), height=2.6),
        ),
        section(
            "How the run went",
            "Transactions decided per second. The line marks where a storage node was killed.",
            drawing(lambda axes: draw_rates(axes, rates, killed_at), height=2.6),
        ),
    ]
    subtitle = (
        f"{flights:,} flights, written to a replicated log by concurrent processes, applied to a"
        " database exactly once, summarised by Spark, and compared to the last row."
    )
    path.write_text(
        page("A year of flights from New York", subtitle, [definitions(facts), *sections])
    )


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
    axes.set_xlabel("seconds")
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
