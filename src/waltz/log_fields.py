"""Fields of a log line that several calls write alike: text in a line, values in a JSON object.

    log.info("replica_dropped %s reason=%s", Fields(partition=0, replica="s1:7201"), reason)

A line of the log begins with the name of its event; then come fields, `key=value`, and after a
colon or a semicolon a sentence for people.
"""

from __future__ import annotations

from typing import Any


class Fields(dict[str, Any]):
    """Names and values, in order; as text `key=value`, a value with spaces in quotes."""

    def __str__(self) -> str:
        return " ".join(f"{key}={_text(value)}" for key, value in self.items())


def printable(text: str) -> str:
    """Return `text` with an escape for each character that a terminal or a page should not get."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _text(value: object) -> str:
    text = str(value)
    return repr(text) if " " in text or not text else text
