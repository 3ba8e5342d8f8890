"""The two formats of the log: lines for people, and a JSON object per line for machines.

Owns how the objects come out of the lines' templates: the name of the event is the first word, and
each `key=value` after it is a field, whose value keeps its type. What the template does not name,
such as the text of an error, never becomes a field, whatever it contains.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import click

from waltz.errors import WaltzError
from waltz.log_fields import Fields

LIBRARY_EVENT: Final = "library_message"
"""The event of lines that other libraries write: they have no names."""

CONVERSION: Final = re.compile(r"%[-# +]*\d*(?:\.\d+)?[a-zA-Z]")
_KEY: Final = re.compile(r" (?=[a-z_]+=)")
_SENTENCE: Final = re.compile("[:;] ")

log = logging.getLogger(__name__)


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


LOG_FORMAT_OPTION = click.option(
    "--log-format",
    type=click.Choice(LogFormat, case_sensitive=False),
    default=LogFormat.TEXT,
    show_default=True,
    help="Lines for people, or a JSON object per line: docs/operating/events.md.",
)


class Template(NamedTuple):
    """A line's template: the event, and the templates of its fields; those without a key are
    `Fields`."""

    event: str
    fields: tuple[tuple[str | None, str], ...]


def parsed(template: str) -> Template:
    """Return the parts of a template of ours."""
    head = _SENTENCE.split(template, maxsplit=1)[0]
    event, _, rest = head.partition(" ")
    fields: list[tuple[str | None, str]] = []
    for part in _KEY.split(f" {rest}") if rest else ():
        for place, piece in enumerate(part.split(" %s")):
            key, is_named, value = piece.strip().partition("=")
            if place:
                fields.append((None, "%s"))
            if is_named:
                fields.append((key, value))
    return Template(event, tuple(fields))


def fields_of(template: Template, arguments: tuple[object, ...]) -> dict[str, Any]:
    """Return the fields of a line with these arguments."""
    found: dict[str, Any] = {}
    taken = 0
    for key, value in template.fields:
        count = len(CONVERSION.findall(value))
        own, taken = arguments[taken : taken + count], taken + count
        if key is None:
            if isinstance(own[0], Fields):
                found |= {name: _plain(each) for name, each in own[0].items()}
        elif CONVERSION.fullmatch(value) and not value.endswith(("o", "x")):
            found[key] = repr(own[0]) if value.endswith("r") else _plain(own[0])
        else:
            found[key] = value % own
    return found


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        is_number = not isinstance(value, float) or value - value == 0.0
        return value if is_number and type(value) in (bool, int, float, type(None)) else str(value)
    return str(value)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
        }
        text = record.getMessage()
        if record.name.partition(".")[0] == "waltz" and isinstance(record.msg, str):
            template = parsed(record.msg)
            arguments = record.args if isinstance(record.args, tuple) else ()
            found |= {"event": template.event, "fields": fields_of(template, arguments)}
        else:
            found |= {"event": LIBRARY_EVENT, "fields": {}}
        found["text"] = text
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)


def set_up_logging(log_format: LogFormat = LogFormat.TEXT) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        line = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"
        handler.setFormatter(logging.Formatter(line, "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


@contextmanager
def ending_in_log(log_format: LogFormat) -> Iterator[None]:
    """In JSON, log the error that ends the process, which is otherwise a line for people."""
    try:
        yield
    except Exception as error:
        if log_format is LogFormat.TEXT:
            raise
        trace = None if isinstance(error, WaltzError) else error
        log.error("process_failed error=%s", error, exc_info=trace)
        sys.exit(1)
