"""Where statements begin, as each database reads a text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.client.databases.sql_statements import statement_begins

ALL = ("postgresql", "mysql", "mariadb", "sqlite", "oracle")


def statements(text: str, dialect: str) -> list[str]:
    """What stands from each begin to the next, the last one to the end."""
    begins = [*statement_begins(text, dialect), len(text)]
    return [text[begin:end] for begin, end in pairwise(begins)]


@pytest.mark.parametrize(
    ("dialect", "text", "expected"),
    [
        ("postgresql", "/* /* */ */ COMMIT", ["COMMIT"]),
        ("mysql", "/* /* */ */ COMMIT", ["*/ COMMIT"]),
        ("sqlite", "/* /* */ */ COMMIT", ["*/ COMMIT"]),
        ("postgresql", "a; COMMIT; b", ["a; ", "COMMIT; ", "b"]),
        ("mysql", "a; COMMIT", ["a; ", "COMMIT"]),
        ("oracle", "a; COMMIT", ["a; ", "COMMIT"]),
        ("sqlite", "CREATE TRIGGER t BEGIN a; END", ["CREATE TRIGGER t BEGIN a; END"]),
        ("postgresql", "a ;; /* ; b */ ; -- ; c", ["a ;; /* ; b */ ; -- ; c"]),
        ("postgresql", "a 'it''s; b'; c", ["a 'it''s; b'; ", "c"]),
        ("postgresql", r"a '\'; b", [r"a '\'; ", "b"]),
        ("postgresql", r"a E'\'; b'; c", [r"a E'\'; b'; ", "c"]),
        ("postgresql", r"some'\'; b", [r"some'\'; ", "b"]),
        ("mysql", r"a '\'; b'; c", [r"a '\'; b'; ", "c"]),
        ("postgresql", 'a "x;""y"; b', ['a "x;""y"; ', "b"]),
        ("mysql", "a `;`; b", ["a `;`; ", "b"]),
        ("postgresql", "DO $x$ a; $$ ; $x$; b", ["DO $x$ a; $$ ; $x$; ", "b"]),
        ("postgresql", "a$x$; b", ["a$x$; ", "b"]),
        ("postgresql", "a $1; b $1", ["a $1; ", "b $1"]),
        ("mysql", "a 1--1; b", ["a 1--1; ", "b"]),
        ("mysql", "a # ; b", ["a # ; b"]),
        ("postgresql", "a # 1; b", ["a # 1; ", "b"]),
        ("mysql", "a; /*! COMMIT */", ["a; ", "/*! COMMIT */"]),
        ("mysql", "a /*!50000 ; COMMIT */", ["a /*!50000 ; ", "COMMIT */"]),
        ("postgresql", "a 'not closed; b", ["a 'not closed; b"]),
        ("postgresql", "a /* not closed; b", ["a /* not closed; b"]),
        ("postgresql", " -- nothing", [""]),
    ],
)
def test_quotes_and_comments_are_those_of_the_database(
    dialect: str, text: str, expected: list[str]
) -> None:
    assert statements(text, dialect) == expected


PIECES = st.sampled_from(
    [*"aeE ;'\"`$\\\n#-/*!1", "/*", "*/", "--", "$a$", "''", "COMMIT", "/*!", "/*M!", "E'"]
)


@given(st.lists(PIECES).map("".join), st.sampled_from(ALL))
def test_every_text_has_an_end(text: str, dialect: str) -> None:
    begins = list(statement_begins(text, dialect))
    assert begins == sorted(set(begins))
    assert all(0 <= begin <= len(text) for begin in begins)
    assert all(text[begin] not in " \n;" for begin in begins if begin < len(text))
