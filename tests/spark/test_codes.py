"""The codes that users may look for in the text of an error."""

from __future__ import annotations

import re

from waltz.spark import codes


def test_every_code_has_one_meaning_and_the_form_that_people_search_for() -> None:
    given = [value for name, value in vars(codes).items() if name.isupper()]
    assert len(set(given)) == len(given)
    assert all(re.fullmatch(r"WALTZ-\d{4}", code) for code in given)


def test_a_text_is_not_given_a_second_code() -> None:
    assert codes.has_code(ValueError(f"{codes.UNAVAILABLE}: nobody answers"))
    assert not codes.has_code(ValueError("nobody answers"))
