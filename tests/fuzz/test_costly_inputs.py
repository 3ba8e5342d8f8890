"""No text that a user or a peer can send costs more than its length is worth."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.clusters import ROOT
from tests.fuzz.costly_inputs import BAD, OF_EXPRESSIONS, PARSERS, sites, sites_in
from tests.shares import one_in


def failures(*arguments: str) -> dict[str, str]:
    """In a process without threads, which may fork."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.costly_inputs", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_regular_expression_is_on_the_list_with_what_comes_near_to_matching_it() -> None:
    found = [str(site) for site in sites()]
    assert sorted(found) == sorted(set(found)), "two of one name: give each a constant of its own"
    assert sorted(found) == sorted(OF_EXPRESSIONS)


def test_a_regular_expression_is_found_however_it_is_written() -> None:
    source = """
import re
from re import fullmatch as whole
ONE = re.compile("a")
def two(text): return [re.sub("b", "", text)]
class Three:
    def find(self, text): return whole("c", text)
"""
    assert [site.name for site in sites_in(source, "a.py")] == ["ONE", "two", "Three"]


@pytest.mark.parametrize("arguments", one_in(2, [("--quick",), ()]), ids=["quick", "all"])
def test_the_worst_input_of_100_kB_is_cheap_for_every_parser(arguments: tuple[str, ...]) -> None:
    """F-10."""
    assert len({each.name for each in PARSERS}) == len(PARSERS)
    assert failures(*arguments) == {}


@pytest.mark.long
def test_a_parser_that_is_too_costly_is_caught() -> None:
    assert failures("--proof").keys() == {each.name for each in BAD}
