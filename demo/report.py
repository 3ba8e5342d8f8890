"""The report: one HTML file that needs nothing else; what the flights say and how the run went."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from html import escape
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from demo.flights import flights_file
from demo.verify import Tables

INK: Final = "#22303c"
QUIET: Final = "#8a97a3"
BLUE: Final = "#2f6db3"
RED: Final = "#c8452f"
SAND: Final = "#d9a441"
YEAR: Final = 2013

STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "waltz",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.grid.axis": "y",
    "grid.color": "#e6eaee",
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
}
"""Letters stay letters in the drawing, in the reader's own font."""

PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Flights on Waltz</title>
<style>
  body {{ margin: 3rem auto; max-width: 60rem; padding: 0 1.5rem; color: {ink};
    font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
  h1 {{ font-size: 2rem; letter-spacing: -.02em; margin: 0 0 .25rem; }}
  h2 {{ font-size: 1.15rem; margin: 2.5rem 0 .5rem; }}
  p {{ max-width: 42rem; }}
  .quiet {{ color: {quiet}; }}
  dl {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 1rem;
    margin: 1.5rem 0; }}
  dl div {{ border-left: 3px solid {blue}; padding-left: .75rem; }}
  dt {{ color: {quiet}; font-size: .85rem; }}
  dd {{ margin: 0; font-size: 1.35rem; font-variant-numeric: tabular-nums; }}
  svg {{ width: 100%; height: auto; }}
  svg text {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif !important; }}
  table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
  th, td {{ padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #e6eaee; }}
  th:first-child, td:first-child {{ text-align: left; }}
  th {{ font-weight: 600; font-size: .85rem; color: {quiet}; }}
</style>
</head>
<body>
<h1>A year of flights from New York</h1>
<p class="quiet">{subtitle}</p>
{content}
</body>
</html>
"""


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
    with mpl.rc_context(STYLE):
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
    content = "\n".join([definitions(facts), *sections])
    path.write_text(
        PAGE.format(ink=INK, quiet=QUIET, blue=BLUE, subtitle=subtitle, content=content)
    )


def section(title: str, text: str, content: str) -> str:
    return f'<h2>{escape(title)}</h2>\n<p class="quiet">{escape(text)}</p>\n{content}'


def definitions(facts: Iterable[tuple[str, str]]) -> str:
    items = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts)
    return f"<dl>{''.join(items)}</dl>"


def drawing(draw: Callable[[Any], None], *, height: float = 3.2) -> str:
    """Return what `draw` draws into its axes as an SVG element."""
    figure = Figure(figsize=(9, height), layout="constrained")
    draw(figure.subplots())
    target = io.StringIO()
    figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
    text = target.getvalue()
    return text[text.index("<svg") :]


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
    lines = ["<tr>" + "".join(f"<th>{title}</th>" for title in heading) + "</tr>"]
    for row in sorted(rows, key=lambda row: -row["flights"]):
        cells = (
            names.get(row["carrier"], row["carrier"]),
            f"{row['flights']:,}",
            f"{row['cancelled'] / row['flights']:.1%}",
            *(str(delay) for delay in (row["departure_delay"] or ("", ""))[:2]),
            *(str(delay) for delay in (row["arrival_delay"] or ("", ""))[:2]),
        )
        lines.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(lines)}</table>"


def carrier_names() -> dict[str, str]:
    """Return the names that come with the flights, by carrier code."""
    with (flights_file().parent / "airlines.csv").open(newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}
