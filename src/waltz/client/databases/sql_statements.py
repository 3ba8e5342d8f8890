"""Finds where the statements in a text of SQL begin, after comments and behind semicolons, and
which of them an application may not run while it applies.

Owns what databases take for a comment and for quoted text, and what is forbidden. It finds
mistakes, not attacks: session settings that change how quotes are read are not followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from waltz.errors import LocalProtocolError

_STANDARD_QUOTES: Final = r"""
      '[^']*(?:''[^']*)*(?:'|\Z)
    | "[^"]*(?:""[^"]*)*(?:"|\Z)
"""
_BACKSLASH_QUOTES: Final = r"""
      '[^'\\]*(?:(?:\\(?:.|\Z)|'')[^'\\]*)*(?:'|\Z)
    | "[^"\\]*(?:(?:\\(?:.|\Z)|"")[^"\\]*)*(?:"|\Z)
    | `[^`]*(?:`|\Z)
"""
# A word before quotes is matched first, so that E'...' is recognised only if the e stands alone.
_ESCAPED_TEXT: Final = r"[eE]'[^'\\]*(?:(?:\\(?:.|\Z)|'')[^'\\]*)*(?:'|\Z)"
_DOLLAR: Final = r"(?P<dollar>\$(?:[^\W\d]\w*)?\$)"
_REST: Final = r"\w[\w$]* | (?P<comment>/\*) | (?P<semicolon>;) | ."
_BLANK: Final = r"(?P<blank>\s+|--[^\n]*)"
_MYSQL_BLANK: Final = r"(?P<blank>\s+|--(?=\s|\Z)[^\n]*|\#[^\n]*)"

_HOW: Final = re.DOTALL | re.VERBOSE
_PIECE: Final = re.compile(f"{_BLANK} | {_STANDARD_QUOTES} | {_REST}", _HOW)
"""One piece of a text, as are the patterns below; it matches everywhere before the end."""

_POSTGRESQL_PIECE: Final = re.compile(
    f"{_BLANK} | {_ESCAPED_TEXT} | {_DOLLAR} | {_STANDARD_QUOTES} | {_REST}", _HOW
)
_MYSQL_PIECE: Final = re.compile(f"{_MYSQL_BLANK} | {_BACKSLASH_QUOTES} | {_REST}", _HOW)
_COMMENT_ENDS: Final = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Syntax:
    """The syntax that a database reads.

    nests          a comment may contain a comment.
    takes_many     drivers may run several statements of one text.
    runs_comments  the database runs comments that begin with /*! or /*M!.
    """

    piece: re.Pattern[str]
    nests: bool = False
    takes_many: bool = True
    runs_comments: bool = False


_STANDARD: Final = Syntax(_PIECE)
_MYSQL: Final = Syntax(_MYSQL_PIECE, runs_comments=True)

SYNTAXES: Final = {
    "postgresql": Syntax(_POSTGRESQL_PIECE, nests=True),
    # In a trigger's body semicolons end no statement, and a second statement is refused anyway.
    "sqlite": Syntax(_PIECE, takes_many=False),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}


def statement_begins(text: str, dialect: str) -> Iterator[int]:
    """Yield where each statement of `text` begins; at least one position, the text's end if it is
    empty.

    `dialect` is SQLAlchemy's name of the database. Takes time linear in the text's length.
    """
    syntax = SYNTAXES.get(dialect, _STANDARD)
    position = _after_blanks(text, 0, syntax)
    yield position
    if not syntax.takes_many or ";" not in text:
        return
    while (found := syntax.piece.match(text, position)) is not None:
        if found.lastgroup != "semicolon":
            position = _piece_end(text, found, syntax)
            continue
        position = _after_blanks(text, found.end(), syntax)
        if position < len(text):
            yield position


def _after_blanks(text: str, position: int, syntax: Syntax) -> int:
    """Return where the next statement begins: after blanks, comments and empty statements."""
    while (found := syntax.piece.match(text, position)) is not None:
        end = _piece_end(text, found, syntax)
        is_run = found.lastgroup == "comment" and end == found.end()
        if found.lastgroup not in ("blank", "comment", "semicolon") or is_run:
            break
        position = end
    return position


def _piece_end(text: str, found: re.Match[str], syntax: Syntax) -> int:
    """Return the end of the piece that begins as `found`; of a comment that the database runs, the
    piece is only the comment mark, since its content is statements."""
    if found.lastgroup == "dollar":
        end = text.find(found[0], found.end())
        return len(text) if end < 0 else end + len(found[0])
    if found.lastgroup != "comment":
        return found.end()
    if syntax.runs_comments and text.startswith(("!", "M!"), found.end()):
        return found.end()
    depth = 1
    for each in _COMMENT_ENDS.finditer(text, found.end()):
        if each[0] == "*/":
            depth -= 1
        elif syntax.nests:
            depth += 1
        if depth == 0:
            return each.end()
    return len(text)


_ENDS_OR_CHANGES: Final = re.compile(
    r"(?:COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|PREPARE\s+TRANSACTION|XA|USE"
    r"|ROLLBACK(?!(?:\s+WORK|\s+TRANSACTION)?\s+TO\b)"
    r"|SET\s+(?:\w+\s+)?(?:TRANSACTION|AUTOCOMMIT|CHARACTERISTICS)"
    r"|SET\s+(?:@@(?:\w+\.)?)?AUTOCOMMIT)\b",
    re.IGNORECASE,
)
"""Statements with the effect of the forbidden methods."""

_COMMITS_IN_MYSQL: Final = re.compile(
    r"(?:(?:CREATE(?:\s+OR\s+REPLACE)?|DROP)(?!\s+TEMPORARY)|ALTER|TRUNCATE|RENAME"
    r"|GRANT|REVOKE|LOCK|UNLOCK|ANALYZE|OPTIMIZE|REPAIR|FLUSH)\b",
    re.IGNORECASE,
)
"""Statements before which MySQL and MariaDB commit the transaction that is under way."""

_RUN_BY_MYSQL: Final = re.compile(r"/\*M?!")
"""A comment that MySQL and MariaDB run as a statement."""


def forbidden_statement(statement: str, dialect: str) -> str | None:
    """Return a description of the first statement in the text `statement` that would end or change
    the transaction in which it is run; None: there is none. `dialect` is SQLAlchemy's name."""
    is_mysql = dialect in ("mysql", "mariadb")
    for begin in statement_begins(statement, dialect):
        what = f"the statement {statement[begin : begin + 60]!r}"
        if _ENDS_OR_CHANGES.match(statement, begin):
            return what
        if is_mysql and _COMMITS_IN_MYSQL.match(statement, begin):
            return f"{what}, which commits in {dialect},"
        if is_mysql and _RUN_BY_MYSQL.match(statement, begin):
            return "a statement that begins with a comment that the database runs"
    return None


def not_allowed(what: str, savepoints: str = "begin_nested") -> LocalProtocolError:
    """Return the error for `what`, which an application may not do while it applies. `savepoints`:
    what its library calls them."""
    return LocalProtocolError(
        f"{what} is not allowed while transactions are applied: the high-water mark moves in"
        " the same database transaction, which is committed by the caller; savepoints"
        f" ({savepoints}) are allowed"
    )
