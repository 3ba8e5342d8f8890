"""`waltz policy token`, and what it prints."""

from __future__ import annotations

import pytest

from tests.clusters import run_tool
from waltz.bearer_tokens import is_token, parse_tokens


def test_a_token_and_its_line_belong_together_and_no_two_are_equal() -> None:
    said = run_tool("policy", "token", "prometheus")
    token, line = said.out.splitlines()
    assert is_token(token)
    assert token not in line
    assert parse_tokens(line.encode(), "file").name_of(token) == "prometheus"
    assert "will not be shown again" in said.err
    made = run_tool("policy", "token", "prometheus", "--json").json
    assert made.keys() == {"name", "token", "line"}
    assert parse_tokens(made["line"].encode(), "file").name_of(made["token"]) == made["name"]
    assert made["token"] != token


@pytest.mark.parametrize("name", ["1", "true", "null", "0x1F", "1e3"])
def test_a_name_that_yaml_would_take_for_something_else_stays_a_name(name: str) -> None:
    made = run_tool("policy", "token", name, "--json").json
    assert parse_tokens(made["line"].encode(), "file").names == (name,)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 65, "a\nb: c"])
def test_what_is_no_name_is_refused(name: str) -> None:
    said = run_tool("policy", "token", "--", name)
    assert (said.code, said.out) == (1, "")
    assert "is no name of a token" in said.err
