"""Authors as people and programs read them."""

from __future__ import annotations

from waltz.cli.author_text import author_name, author_values
from waltz.operators.authors import Author
from waltz.types import ClientId

NAMELESS = Author(ClientId(7), "", "", "", "", "h:1", "a journal has it")


def test_a_client_without_a_name_is_not_an_unknown_one() -> None:
    assert author_name(ClientId(7), NAMELESS) == "without a name (client 7)"
    assert author_name(ClientId(7), None) == "unknown (client 7)"
    assert author_values(None) is None
    found = author_values(NAMELESS)
    assert found is not None
    assert (found["name"], found["address"], found["client_id"]) == (None, "h:1", 7)
