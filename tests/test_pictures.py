"""The pictures of the documentation are as drawn, and stand where readers need them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.pictures.drawing import wrapped
from docs.pictures.gallery import FOLDER, PICTURES
from docs.pictures.lanes import Lanes
from docs.pictures.recoveries import stories
from docs.pictures.rooms import FACE, order
from tests.test_tidy import LAYERS, WORDS

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_as_drawn(name: str) -> None:
    assert (FOLDER / name).read_text() == PICTURES[name](), "python -m docs.pictures"


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_of_a_picture_is_cut_off(name: str) -> None:
    picture = ElementTree.parse(FOLDER / name).getroot()
    wide, high = float(picture.attrib["width"]), float(picture.attrib["height"])
    for each in picture.iter("{http://www.w3.org/2000/svg}rect"):
        left, top = float(each.get("x", 0)), float(each.get("y", 0))
        assert 0 <= left <= left + float(each.attrib["width"]) <= wide
        assert 0 <= top <= top + float(each.attrib["height"]) <= high


def test_every_picture_stands_on_a_page_that_says_what_it_shows() -> None:
    shown = {
        (page.parent / target).resolve(): words
        for page in PAGES
        for words, target in re.findall(r"!\[([^]]*)\]\(([^)]+\.svg)\)", page.read_text())
    }
    assert shown.keys() == {*FOLDER.glob("*.svg")} == {FOLDER / name for name in PICTURES}
    assert all(shown.values())


def test_every_part_of_the_package_has_a_box_above_what_it_imports() -> None:
    parts = order(LAYERS)
    assert {*parts} == LAYERS.keys() - WORDS
    for number, part in enumerate(parts):
        assert not LAYERS[part] & {*parts[:number]}
        assert f">{part or FACE}</text>" in (FOLDER / "rooms.svg").read_text()


def test_an_arrow_that_leads_both_ways_is_refused() -> None:
    with pytest.raises(AssertionError, match="both ways"):
        Lanes("two", ["a", "b", "c"]).arrow("b", ["a", "c"], "hello")


def test_words_that_have_no_room_are_refused() -> None:
    assert wrapped("one two three", 60) == ["one two", "three"]
    with pytest.raises(AssertionError, match="wider than"):
        wrapped("incomprehensibilities", 60)


def test_all_that_have_answered_a_recovery_hold_its_mark() -> None:
    found = stories(FOLDER / "recoveries.yaml")
    assert [story.mark for story in found].count(None) == 1
    for story in found:
        for name in story.answered if story.mark is not None else ():
            assert len(story.after[name].records) - 1 == story.mark
            assert story.after[name].low_water_mark == story.mark
