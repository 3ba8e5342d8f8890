"""Prints the changes of a derived table, commit by commit, however many there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from waltz.errors import ConfigurationError

if TYPE_CHECKING:
    from waltz.spark.pipelines.changes import TableChanges
    from waltz.spark.pipelines.definition import PipelineDefinition
    from waltz.spark.pipelines.row_changes import CommittedChanges, Position, Row, RowChange


def show_changes(
    wanted: PipelineDefinition, table: str, after: str | None, limit: int | None, *, as_json: bool
) -> None:
    """Print the changes of each commit after the position in the text `after`, None: the whole
    table; end with the commit that comes to `limit` changes.

    Raises ConfigurationError: the text is no position; otherwise as `TableChanges.after`.
    """
    from waltz.spark.pipelines.changes import TableChanges

    position = None if after is None else _position(after)
    with TableChanges(wanted, table) as feed:
        shown = _Json(feed) if as_json else _Lines(feed)
        commits = feed.after(position)
        first = next(commits, None)  # what is refused is refused before anything is printed
        shown.begin()
        count, has_more = 0, False
        for commit in () if first is None else chain((first,), commits):
            if limit is not None and count >= limit:
                has_more = True
                break
            shown.begin_commit(commit)
            for change in commit.changes:
                shown.change(change)
                count += 1
            shown.end_commit()
            position = commit.position
        assert position is not None, "a whole table is a commit"
        shown.end(position, has_more=has_more)


def _position(text: str) -> Position:
    from waltz.spark.pipelines.row_changes import Position

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigurationError(
            f"--after is {text!r:.80}; expected a position as an earlier call printed it"
        ) from None
    return Position.from_json(found)


class _Lines:
    """One line for each change."""

    def __init__(self, feed: TableChanges) -> None:
        self._columns = feed.columns
        self._width = len(feed.keys)

    def begin(self) -> None: ...

    def begin_commit(self, commit: CommittedChanges) -> None: ...

    def change(self, change: RowChange) -> None:
        row = change.before if change.after is None else change.after
        assert row is not None
        key = ", ".join(self._said(row, range(self._width)))
        click.echo(f"{change.kind} {key}: {', '.join(self._values(change, row))}")

    def end_commit(self) -> None: ...

    def end(self, position: Position, *, has_more: bool) -> None:
        more = "; there are more" if has_more else ""
        click.echo(f"position {json.dumps(position.to_json())}{more}")

    def _values(self, change: RowChange, row: Row) -> Iterator[str]:
        places = range(self._width, len(self._columns))
        if change.before is None or change.after is None:
            yield from self._said(row, places)
            return
        for place in places:
            old, new = change.before[place], change.after[place]
            if old != new:
                yield f"{self._columns[place]} = {_text(old)} -> {_text(new)}"

    def _said(self, row: Row, places: range) -> Iterator[str]:
        return (f"{self._columns[each]} = {_text(row[each])}" for each in places)


class _Json:
    """One object, written as its parts come: a table may be larger than the memory."""

    def __init__(self, feed: TableChanges) -> None:
        self._columns = feed.columns
        self._keys = feed.keys
        self._is_first_commit = True
        self._is_first_change = True

    def begin(self) -> None:
        click.echo(f'{{"keys": {json.dumps(self._keys)}, "commits": [', nl=False)

    def begin_commit(self, commit: CommittedChanges) -> None:
        comma = "" if self._is_first_commit else ","
        self._is_first_commit, self._is_first_change = False, True
        marks = json.dumps(commit.position.to_json()["marks"])
        click.echo(f'{comma}\n{{"marks": {marks}, "changes": [', nl=False)

    def change(self, change: RowChange) -> None:
        comma = "" if self._is_first_change else ","
        self._is_first_change = False
        facts = {
            "kind": change.kind,
            "before": self._row(change.before),
            "after": self._row(change.after),
        }
        click.echo(f"{comma}\n  {json.dumps(facts)}", nl=False)

    def end_commit(self) -> None:
        click.echo("]}", nl=False)

    def end(self, position: Position, *, has_more: bool) -> None:
        facts = f'"position": {json.dumps(position.to_json())}, "more": {json.dumps(has_more)}'
        click.echo(f"],\n{facts}}}")

    def _row(self, row: Row | None) -> dict[str, Any] | None:
        from waltz.spark.pipelines.fold import json_value

        if row is None:
            return None
        return dict(zip(self._columns, map(json_value, row), strict=True))


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    return "null" if value is None else str(value)
