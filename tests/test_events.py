"""Every event of the log has a name, a meaning, and a place on the page."""

from __future__ import annotations

from pathlib import Path

from tests.events import MEANINGS, MORE_FIELDS, NAME, calls, page
from waltz.cli.log_format import LIBRARY_EVENT

PAGE = Path(__file__).parents[1] / "docs" / "operating" / "events.md"


def test_the_printed_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def test_no_event_is_without_a_name() -> None:
    found = list(calls())
    assert len(found) > 100
    nameless = [each.place for each in found if each.template is None]
    assert nameless == [], "the first argument is to be a literal"
    assert [each.place for each in found if not NAME.fullmatch(each.parts.event)] == []


def test_every_event_has_a_meaning_and_every_meaning_an_event() -> None:
    events = {each.parts.event for each in calls()}
    assert events - MEANINGS.keys() == set(), "tests/events.py has a sentence about each"
    assert MEANINGS.keys() - events == {LIBRARY_EVENT}
    assert all(meaning.endswith(".") for meaning in MEANINGS.values())


def test_only_lines_with_fields_of_several_calls_have_more_than_their_templates_name() -> None:
    with_more = {each.parts.event for each in calls() if (None, "%s") in each.parts.fields}
    assert with_more == MORE_FIELDS.keys()
