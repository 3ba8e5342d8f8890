"""What the loader of people's files reads, and what it refuses."""

from __future__ import annotations

import pytest
import yaml

from waltz.plain_yaml import PlainLoader


def load(text: str) -> object:
    return yaml.load(text, Loader=PlainLoader)


def test_plain_values_are_read() -> None:
    assert load("a: 1\nb: {c: [x, 2.5]}") == {"a": 1, "b": {"c": ["x", 2.5]}}


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("a: 1\nb: 2\na: 3", "key 'a' occurs twice", None),
        ("a: &x 1\nb: *x", "an alias", 1),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor", 0),
        ("a: 1\nb: [2026-13-45]", "not of the form that it seems to have", 1),
        ("a: !!int secret", "not of the form that it seems to have", 0),
        ("a: !!timestamp x", "not of the form that it seems to have", 0),
        ("a: !!bool x", "not of the form that it seems to have", 0),
        ("a: " + "9" * 5_000, "not of the form that it seems to have", 0),
    ],
)
def test_keys_that_occur_twice_aliases_and_objects_are_refused(
    text: str, problem: str, line: int | None
) -> None:
    with pytest.raises(yaml.MarkedYAMLError) as caught:
        load(text)
    assert problem in str(caught.value.problem)
    mark = caught.value.problem_mark
    assert line is None or (mark is not None and mark.line == line)
