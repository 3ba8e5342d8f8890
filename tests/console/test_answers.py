"""Answers count while they are fresh."""

from __future__ import annotations

from waltz.console.answers import Told


def test_a_trouble_makes_an_answer_unknown_at_once() -> None:
    told = Told("answer", 10.0, "refused")
    assert (told.known(10.0), told.why_unknown(10.0), told.age(11.5)) == (None, "refused", 1.5)


def test_before_the_first_answer_nothing_is_known() -> None:
    told: Told[str] = Told()
    assert (told.known(5.0), told.why_unknown(5.0), told.age(5.0)) == (
        None, "it has not answered yet", None,
    )  # fmt: skip


def test_a_clock_that_seems_to_go_back_gives_no_negative_age() -> None:
    assert Told("answer", 10.0).age(9.0) == 0.0
