"""What the page of attackers says of each is shown by tests that exist, or has none and says so."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.rows import TESTS

PAGE = TESTS.parent / "docs" / "design" / "threat-model.md"
NO_TEST = "no test"
SHOWN = {"cannot": {True, False}, "can": {True}, "is found": {True}, "may": {False}}
"""Whether a line with this word may have tests. What an attacker may do nobody has built anything
against, so no test shows it."""


class Line(NamedTuple):
    """One thing that an attacker can do or cannot, and the tests that show it."""

    attacker: str
    word: str
    what: str
    tests: tuple[str, ...]


def lines_of(page: str) -> Iterator[Line]:
    """Yield the lines of all attackers. Raises ValueError: a line is none of the tables'."""
    for section in page.split("\n## ")[1:]:
        attacker, _, text = section.partition("\n")
        for row in re.findall(r"^\|.*", text, re.MULTILINE)[2:]:
            word, what, shown = (cell.strip() for cell in row.strip("|").split("|"))
            tests = tuple(re.findall(r"`([^`]+)`", shown))
            if shown != (" ".join(f"`{each}`" for each in tests) or NO_TEST):
                raise ValueError(f"{attacker}: {shown!r} is neither tests nor {NO_TEST!r}")
            yield Line(attacker, word, what, tests)


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names of a file's tests, as pytest takes them: those of a class are below it."""
    body = ast.parse(path.read_text()).body if path.is_file() else []
    found = {each.name for each in body if isinstance(each, ast.FunctionDef)}
    for group in body:
        if isinstance(group, ast.ClassDef):
            inside = (each.name for each in group.body if isinstance(each, ast.FunctionDef))
            found |= {f"{group.name}::{name}" for name in inside}
    return frozenset(each for each in found if each.rpartition("::")[2].startswith("test_"))


def missing(tests: Sequence[str]) -> list[str]:
    """Return those of the tests, `file::name` each, that do not exist."""
    found = []
    for test in tests:
        file, _, name = test.partition("::")
        if name not in names_in(TESTS / file):
            found.append(test)
    return found


def wrong_words(lines: Sequence[Line]) -> list[Line]:
    """Return the lines whose word says more, or less, than their tests show."""
    return [line for line in lines if bool(line.tests) not in SHOWN.get(line.word, ())]


def test_every_test_that_the_page_names_exists() -> None:
    lines = [*lines_of(PAGE.read_text())]
    assert len(lines) > 80
    assert missing([test for line in lines for test in line.tests]) == []


def test_what_an_attacker_can_do_is_shown_and_what_it_may_do_is_not() -> None:
    assert wrong_words([*lines_of(PAGE.read_text())]) == []


def test_nothing_is_said_twice_of_an_attacker() -> None:
    said = [(line.attacker, line.what) for line in lines_of(PAGE.read_text())]
    assert len(said) == len({*said})


def test_a_test_that_is_not_there_is_found() -> None:
    here = f"{Path(__file__).name}::test_a_test_that_is_not_there_is_found"
    assert missing([here, f"{here}_not", "no_file.py::test_a", "rows.py"]) == [
        f"{here}_not",
        "no_file.py::test_a",
        "rows.py",
    ]


@pytest.mark.parametrize(
    ("row", "is_wrong"),
    [
        ("| can | read | `a.py::test_b` |", False),
        ("| can | read | no test |", True),
        ("| may | read | no test |", False),
        ("| may | read | `a.py::test_b` |", True),
        ("| cannot | read | no test |", False),
        ("| is found | reading | no test |", True),
        ("| might | read | no test |", True),
    ],
)
def test_a_word_that_says_too_much_is_found(row: str, is_wrong: bool) -> None:
    lines = [*lines_of(f"# Page\n\n## Somebody\n\n| | What | Test |\n|---|---|---|\n{row}\n")]
    assert [line.attacker for line in lines] == ["Somebody"]
    assert wrong_words(lines) == (lines if is_wrong else [])


def test_a_line_with_half_a_test_is_refused() -> None:
    with pytest.raises(ValueError, match="neither tests nor"):
        [*lines_of("\n## A\n| | What | Test |\n|---|---|---|\n| can | read | `a.py` or so |\n")]
