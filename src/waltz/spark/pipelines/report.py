"""Writes a report on derived tables: one HTML file for people who would rather look than read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_DEFINITION
from waltz.spark.pipelines.page import BLUE, RED, SAND, definitions, drawing, page, section, table
from waltz.spark.pipelines.report_definition import ReportDefinition, Section

ROWS_MAX: Final = 10_000
"""Rows of one section: a page with more is of no use."""

COLOURS: Final = (BLUE, SAND, RED)

Row = tuple[Any, ...]


def write_report(report: ReportDefinition, database: Path) -> None:
    """Write the report on the tables in `database`, all as of one moment.

    Raises ConfigurationError: there is no database there, or a query is wrong; the section is
    named.
    """
    if not database.exists():
        raise ConfigurationError(
            f"{INVALID_DEFINITION} there is no database {database}; run the pipeline"
        )
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as tables:
        tables.execute("BEGIN")
        marks = tables.execute("SELECT sum(next_transaction_id), count(*) FROM waltz_marks")
        transactions, partitions = marks.fetchone()
        facts = [("transactions", f"{transactions or 0:,}"), ("partitions", f"{partitions:,}")]
        shown = [
            section(each.title, each.text, _shown(each, *_rows(tables, each)))
            for each in report.sections
        ]
    text = page(report.title, report.text, [definitions(facts), *shown])
    # A reader of the page meanwhile sees the old one or the new one.
    fresh = report.target.with_name(f".{report.target.name}.fresh")
    fresh.write_text(text)
    fresh.replace(report.target)


def _rows(tables: sqlite3.Connection, wanted: Section) -> tuple[list[str], list[Row]]:
    try:
        found = tables.execute(wanted.query)
        rows = found.fetchmany(ROWS_MAX + 1)
    except sqlite3.Error as error:
        raise ConfigurationError(
            f"{INVALID_DEFINITION} report: section {wanted.title!r}: {error}: {wanted.query}"
        ) from error
    if len(rows) > ROWS_MAX:
        raise ConfigurationError(
            f"{INVALID_DEFINITION} report: section {wanted.title!r} has more than {ROWS_MAX} rows;"
            " add a LIMIT or group them"
        )
    return [name for name, *_ in found.description or ()], rows


def _shown(wanted: Section, names: list[str], rows: list[Row]) -> str:
    if wanted.show == "table":
        return table(names, ([_text(value) for value in row] for row in rows))
    return drawing(lambda axes: _draw(axes, wanted.show, names, rows))


def _draw(axes: Any, show: str, names: list[str], rows: list[Row]) -> None:
    """Draw the first column against each of the others; missing values leave a gap."""
    numeric = all(isinstance(row[0], (int, float)) for row in rows)
    places = [row[0] if numeric else _text(row[0]) for row in rows]
    columns = list(zip(*rows, strict=True))[1:] or [() for _ in names[1:]]
    width = 0.8 / max(1, len(columns))
    for index, (name, values) in enumerate(zip(names[1:], columns, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        heights = [float("nan") if value is None else value for value in values]
        if show == "lines":
            axes.plot(places, heights, color=colour, linewidth=2, label=name)
        else:
            shifted = [number - 0.4 + width * (index + 0.5) for number in range(len(places))]
            axes.bar(shifted, heights, width=width, color=colour, label=name)
    if show == "bars":
        axes.set_xticks(range(len(places)), [_text(each) for each in places])
    axes.set_xlabel(names[0])
    axes.legend()


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
