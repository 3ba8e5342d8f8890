"""Pages that need nothing else, whatever is on them."""

from __future__ import annotations

import re

from waltz.spark.pipelines.page import definitions, drawing, page, section, table


def test_a_page_has_everything_in_itself_and_texts_stay_texts() -> None:
    text = page(
        "A & B",
        "<all>",
        [
            definitions([("count", "7 < 8")]),
            section("Lines", "a > b", drawing(lambda axes: axes.plot([1, 2], [3, 4]))),
            table(("name", "value"), [("<x>", "1")]),
        ],
    )
    assert "<h1>A &amp; B</h1>" in text
    assert "<title>A &amp; B</title>" in text
    assert '<p class="quiet">&lt;all&gt;</p>' in text
    assert "<dt>count</dt><dd>7 &lt; 8</dd>" in text
    assert "<td>&lt;x&gt;</td><td>1</td>" in text
    assert text.count("<svg") == text.count("</svg>") == 1
    assert not re.findall(r"(?:src|href)=\"([^#][^\"]*)\"", text)
    assert "<script" not in text


def test_the_same_drawing_is_the_same_text() -> None:
    first, second = (drawing(lambda axes: axes.plot([1, 2], [3, 4])) for _ in range(2))
    assert first == second
