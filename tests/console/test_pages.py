"""Rendering: what moves is sent once, and only what has changed; everything is escaped."""

from __future__ import annotations

from markupsafe import escape

from tests.console.hostile import ALL
from tests.console.served import large
from waltz.console.marks_history import MarksHistory
from waltz.console.pages import GLYPHS, MEANINGS, Rendered, Sent, chart_points, environment, render
from waltz.console.picture import picture_of
from waltz.console.site import Site
from waltz.console.view import View
from waltz.wire.report_protocol import Standing

START, END = "\ufdd0", "\ufdd1"


def page(layout: str = "a", mark: str = "7", row: str = "well") -> Rendered:
    inner = f"<td>{row}<td>{START}m{END}"
    return Rendered(f"<tr>{inner}</tr>", layout, {"p0": inner}, {"m": mark})


def test_values_are_put_in_place_and_escaped() -> None:
    assert page(mark="<b>").whole() == "<tr><td>well<td>&lt;b&gt;</tr>"


def test_a_viewer_is_sent_everything_once_and_then_the_differences() -> None:
    sent = Sent()
    assert sent.changes(page()) == {
        "regions": {"p0": "<td>well<td>7"}, "values": {"m": "7"}, "charts": {},
    }  # fmt: skip
    assert sent.changes(page()) == {"regions": {}, "values": {}, "charts": {}}
    assert sent.changes(page(mark="8"))["values"] == {"m": "8"}
    assert sent.changes(page(mark="8"))["regions"] == {}, "a value is not a change of its region"
    assert sent.changes(page(mark="8", row="down"))["regions"] == {"p0": "<td>down<td>8"}
    assert sent.changes(page("b")) == {"reload": True}


def test_a_text_that_looks_like_our_marks_is_no_value() -> None:
    found = Rendered(f"{START}nosuch{END}", "", {}, {})
    assert found.whole() == ""


def test_every_template_escapes_and_misses_nothing() -> None:
    assert environment().autoescape is True
    for text in ALL:
        shown = render(
            "message.html", cluster_name=text, navigation={}, section="", events=text,
            heading=text, text=text,
        ).whole()  # fmt: skip
        assert START in text or str(escape(text)) in shown
        assert text not in shown or text == str(escape(text))


def test_each_standing_has_a_sign_and_a_meaning() -> None:
    names = {each.name.lower() for each in Standing}
    assert set(GLYPHS) == set(MEANINGS) == names
    assert len(set(GLYPHS.values())) == len(GLYPHS), "told apart without colours"


def test_a_page_is_rendered_once_per_picture() -> None:
    answers = large()
    view = View((1, 0), picture_of(answers), answers, MarksHistory())
    site = Site()
    first = site.page("/", view)
    assert site.page("/", view) is first
    assert site.page("/", View((1, 1), view.picture, answers, view.history)) is not first


def test_points_are_ages_and_rates() -> None:
    assert chart_points([(10.0, 1.25), (12.0, 3.0)], 12.0) == ([-2.0, 0.0], [1.25, 3.0])
