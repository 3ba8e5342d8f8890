"""How a witness is named on the command line; asking one is in `test_witness.py`."""

from __future__ import annotations

import click
import pytest

from tests.attest.trees import known_key
from waltz.attest.notes import KeyKind
from waltz.cli.cosigning import Witness
from waltz.errors import ConfigurationError

KEY = known_key("witness.example/w", KeyKind.WITNESS).public_key


def test_a_witness_is_a_url_and_a_key() -> None:
    found = Witness.parse(f"http://127.0.0.1:7190/={KEY}")
    assert found == Witness("http://127.0.0.1:7190", KEY)


@pytest.mark.parametrize("text", ["", "http://127.0.0.1:7190", f"ftp://127.0.0.1={KEY}", str(KEY)])
def test_what_names_no_witness_is_a_wrong_call(text: str) -> None:
    with pytest.raises(click.UsageError, match="expected http"):
        Witness.parse(text)


def test_a_key_that_is_none_is_named() -> None:
    with pytest.raises(ConfigurationError, match="neither a file nor a key"):
        Witness.parse("http://127.0.0.1:7190=nothing")


def test_the_key_of_a_log_is_no_witness() -> None:
    log = known_key("waltz/test", KeyKind.LOG).public_key
    with pytest.raises(ConfigurationError, match="is the key of a log, and witnesses nothing"):
        Witness.parse(f"http://127.0.0.1:7190={log}")
