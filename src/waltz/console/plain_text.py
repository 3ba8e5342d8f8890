"""Text from outside, made harmless to read: one line, bounded, nothing invisible.

Owns which characters are shown as an escape: those that move the cursor, turn the direction of
writing, or cannot be seen. Marking up for HTML is the templates' part.
"""

from __future__ import annotations

import unicodedata
from typing import Final

TEXT_CHARACTERS_MAX: Final = 300
"""Characters of a text from outside that are shown; the rest is counted."""

HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Unicode categories that are shown as escapes: controls, formats such as overrides of the writing
direction, surrogates, private and unassigned characters, separators of lines and paragraphs."""

MARKS_IN_A_ROW_MAX: Final = 2
"""Combining marks that may follow one another: a pile of them covers the lines around it."""


def plain(text: object, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """Return `text` as one line of visible characters."""
    given = text if isinstance(text, str) else str(text)
    if len(given) <= characters_max and given.isascii() and given.isprintable():
        return given  # almost every text, and nothing in it to look at one by one
    shown = []
    marks = 0
    for character in given[:characters_max]:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        is_hidden = category in HIDDEN or marks > MARKS_IN_A_ROW_MAX
        is_hidden |= category == "Zs" and character != " "
        shown.append(_escaped(character) if is_hidden else character)
    if len(given) > characters_max:
        shown.append(f"… ({len(given):,} characters)")
    return "".join(shown)


def plain_data(data: bytes, bytes_max: int) -> str:
    """Return the beginning of a transaction's data; bytes that are no text are shown as escapes."""
    text = plain(data[:bytes_max].decode("utf-8", "backslashreplace"), 4 * bytes_max)
    return text if len(data) <= bytes_max else f"{text}… ({len(data):,} bytes)"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
