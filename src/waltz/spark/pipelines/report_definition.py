"""The definition of a report on derived tables, from its file. Pure: parsed YAML in, values out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from waltz.spark.pipelines.tables import expect_mapping, mistake

Show = Literal["table", "bars", "lines"]

REPORT_KEYS: Final = ("target", "title", "text", "sections")
SECTION_KEYS: Final = ("title", "text", "query", "show")


@dataclass(frozen=True, slots=True)
class Section:
    """A query of the tables and how its rows are shown: the first column against the others."""

    title: str
    query: str
    show: Show = "table"
    text: str = ""


@dataclass(frozen=True, slots=True)
class ReportDefinition:
    target: Path
    title: str
    sections: tuple[Section, ...]
    text: str = ""


def parse_report(found: object, directory: Path) -> ReportDefinition:
    """Return the report under the key `report` of a file; paths are relative to `directory`.

    Raises ConfigurationError, naming the key.
    """
    given = expect_mapping("report", found, REPORT_KEYS)
    _expect("report", given, ("target", "title", "sections"))
    sections = given["sections"]
    if not isinstance(sections, list) or not sections:
        raise mistake(f"report: sections is {sections!r:.80}; expected a list")
    return ReportDefinition(
        directory / str(given["target"]),
        str(given["title"]),
        tuple(_section(f"report: section {n}", each) for n, each in enumerate(sections, 1)),
        str(given.get("text", "")),
    )


def _section(where: str, found: object) -> Section:
    given = expect_mapping(where, found, SECTION_KEYS)
    _expect(where, given, ("title", "query"))
    show = given.get("show", "table")
    if show not in get_args(Show):
        raise mistake(f"{where}: show is {show!r}; expected one of {', '.join(get_args(Show))}")
    return Section(str(given["title"]), str(given["query"]), show, str(given.get("text", "")))


def _expect(where: str, given: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        if key not in given:
            raise mistake(f"{where}: {key} is missing")
