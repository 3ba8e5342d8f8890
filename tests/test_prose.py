"""Plain English as a test: `docs/style.md` has the rules, this counts what breaks them.

What broke them when the rules were written down is counted per part of the package in
`tests/prose.json`; a count may only fall. `python -m tests.test_prose` lowers the counts to what
is there, and raises none.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.test_tidy import modules, part_of, where

COUNTS: Final = Path(__file__).with_name("prose.json")

OPENING: Final = re.compile(r"(What|How|Of|Where|Which|Who|Whoever|Whom|Whose|When|For)\b")
"""A docstring that begins so has no subject: its reader has to look for one in the name."""

PHRASES: Final = re.compile(
    r"\b(whoever|whomever|whatever else|so many|gone on with|goes on with"
    r"|hundredths of a second|he|him|his|himself"
    r"|(?:meta)?data (?:are|were|have|say))\b",
    re.IGNORECASE,
)


def breaches(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each breach of the rules in a module's text."""
    for line, text, is_docstring in prose(source):
        if is_docstring and (found := OPENING.match(text)):
            yield line, f"begins with {found[0]!r}"
        yield from ((line, f"says {found[0]!r}") for found in PHRASES.finditer(text))


def prose(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text, and whether it is a docstring, of all docstrings and comments."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield node.lineno, " ".join(text.split()), True
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != last + 1:
            yield last, " ".join(block), False
            block = []
        last = token.start[0]
        block.append(token.string.lstrip("# "))
    if block:
        yield last, " ".join(block), False


@cache
def found_in_package() -> dict[str, list[str]]:
    """Return the breaches of each part of `waltz`, as lines."""
    found: dict[str, list[str]] = {}
    for path in modules():
        lines = found.setdefault(part_of(path) or "waltz", [])
        lines += [f"{where(path, line)}: {says}" for line, says in breaches(path.read_text())]
    return found


def lowered(allowed: dict[str, int]) -> dict[str, int]:
    """Return `allowed` with the counts that have fallen."""
    counts = {part: len(lines) for part, lines in found_in_package().items()}
    return {
        part: min(count, allowed.get(part, 0))
        for part, count in sorted(counts.items())
        if min(count, allowed.get(part, 0))
    }


def test_no_part_of_the_package_reads_worse_than_before() -> None:
    allowed = json.loads(COUNTS.read_text())
    worse = [
        f"{part}: {len(lines)} breaches, {allowed.get(part, 0)} allowed; the new ones are among\n"
        + "\n".join(lines)
        for part, lines in found_in_package().items()
        if len(lines) > allowed.get(part, 0)
    ]
    assert not worse, "docs/style.md says how it reads better\n" + "\n".join(worse)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('def f():\n    """What it holds."""\n', [(2, "begins with 'What'")]),
        ('LIMIT = 3\n"""Of these at a time."""\n', [(2, "begins with 'Of'")]),
        ('"""The data\nare here."""\n', [(1, "says 'data are'")]),
        ("# Read by\n# whoever asks.\nx = 1\n", [(2, "says 'whoever'")]),
        ('def f():\n    """Return what it holds."""\n', []),
        ('x = "What"  # the header\n', []),
    ],
)
def test_breaches_are_found(source: str, expected: list[tuple[int, str]]) -> None:
    assert [*breaches(source)] == expected


def test_lowering_raises_nothing() -> None:
    assert lowered({}) == {}
    assert set(lowered(json.loads(COUNTS.read_text())).values()) <= {*range(1, 10_000)}


if __name__ == "__main__":
    COUNTS.write_text(json.dumps(lowered(json.loads(COUNTS.read_text())), indent=2) + "\n")
