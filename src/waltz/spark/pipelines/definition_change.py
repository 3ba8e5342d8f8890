"""The difference between the definition that tables were made with and another one. Pure.

A target keeps the definition of its tables as text, the `fingerprint` of `tables.py`. The text has
each table and the decoding by themselves, so a table that has changed is told from one that has
not, also in targets of earlier releases.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

from waltz.errors import ConfigurationError
from waltz.spark.codes import DEFINITION_CHANGED, INVALID_TABLES
from waltz.spark.pipelines.schemas import JSON_ONLY
from waltz.spark.pipelines.tables import Decoding, Measure, TableDefinition, TablesDefinition

JSON_FOR_ALL: Final = [[header, *each.fingerprint()] for header, each in JSON_ONLY]
"""The schemas of a decoding that names none, as far as they are compared."""


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """The changes that tables need to be those of a definition.

    added         tables that are not there.
    changed       tables whose rows may be others now.
    removed       tables that the definition does not have.
    is_judged     other transactions than before may be undecodable, so that the past must be read.
    is_strict     undecodable transactions were put aside before, and end a run now.
    is_rewritten  the text differs at all.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    is_judged: bool = False
    is_strict: bool = False
    is_rewritten: bool = False

    @property
    def derived(self) -> tuple[str, ...]:
        """The tables that are to be derived from the beginning of the log."""
        return (*self.added, *self.changed)

    @property
    def reads_the_past(self) -> bool:
        return bool(self.derived) or self.is_judged

    def __str__(self) -> str:
        told = [
            *(f"table {each} is not there yet" for each in self.added),
            *(f"table {each} has changed" for each in self.changed),
            *(f"table {each} is no longer in the definition" for each in self.removed),
        ]
        if self.is_judged or self.is_strict:
            told.append("`decode` has changed")
        return ", ".join(told)


def change_between(stored: str, wanted: str, place: str) -> DefinitionChange:
    """Return what leads from the definition that `place` has to the one that is wanted, both as
    fingerprints.

    Raises ConfigurationError: the stored text is no fingerprint.
    """
    if stored == wanted:
        return DefinitionChange()
    old, new = _parts(stored, place), _parts(wanted, place)
    before, now = _by_name(old), _by_name(new)
    kept = [name for name in now if name in before]
    decoding, other = old["decoding"], new["decoding"]
    fields, other_fields = dict(decoding["fields"]), dict(other["fields"])
    headers, other_headers = _schemas(decoding), _schemas(other)
    is_redefined = any(
        fields[name] != other_fields[name] for name in fields.keys() & other_fields.keys()
    ) or any(
        _schema_of(headers, each) != _schema_of(other_headers, each)
        for each in {*headers, *other_headers}
        if _schema_of(headers, each) is not None and _schema_of(other_headers, each) is not None
    )
    return DefinitionChange(
        added=tuple(name for name in now if name not in before),
        changed=tuple(each for each in kept if is_redefined or before[each] != now[each]),
        removed=tuple(name for name in before if name not in now),
        is_judged=fields != other_fields or headers != other_headers,
        is_strict=decoding["quarantine"] and not other["quarantine"],
        is_rewritten=True,
    )


def expect_same(stored: str, wanted: str, place: str) -> None:
    """Check that the tables at `place` are those of the definition that is wanted. Raises
    ConfigurationError, naming the tables that are not."""
    if told := str(change_between(stored, wanted, place)):
        raise ConfigurationError(
            f"{DEFINITION_CHANGED} {place} was made with another definition: {told}; run"
            " `waltz pipeline run`, which derives only what has changed"
        )


def expect_dropped(change: DefinitionChange, drop: Collection[str], place: str) -> None:
    """Check that `drop` names just the tables that a definition no longer has. Raises
    ConfigurationError."""
    if left := [each for each in change.removed if each not in drop]:
        names = ", ".join(left)
        wanted = " ".join(f"--drop {each}" for each in left)
        raise ConfigurationError(
            f"{DEFINITION_CHANGED} {place} has tables that are no longer in the definition:"
            f" {names}. Put them back, or drop them: `waltz pipeline run {wanted}`"
        )
    if strange := [each for each in drop if each not in change.removed]:
        raise ConfigurationError(
            f"{DEFINITION_CHANGED} {place}: {', '.join(strange)} cannot be dropped: only a table"
            " that the target has, and the definition does not, can be"
        )


def former_definition(stored: str, wanted: TablesDefinition, place: str) -> TablesDefinition:
    """Return the definition that `place` has. The files of its schemas are those of `wanted`.

    Raises ConfigurationError: the files have changed, or the text cannot be read.
    """
    parts = _parts(stored, place)
    schemas = wanted.decoding.schemas if "schemas" in parts["decoding"] else JSON_ONLY
    found = TablesDefinition(
        tuple(_table(each) for each in parts["tables"]),
        Decoding(
            tuple((name, kind) for name, kind in parts["decoding"]["fields"]),
            quarantine=parts["decoding"]["quarantine"],
            schemas=schemas,
        ),
    )
    if found.fingerprint() != stored:
        raise ConfigurationError(
            f"{DEFINITION_CHANGED} {place}: a run was stopped within a batch, and the schemas it"
            " decoded by have changed since: run the pipeline once with the definition and the"
            " schemas as they were, then with these; or run `waltz pipeline rebuild`"
        )
    return found


def stored_table(stored: str, name: str, place: str) -> TableDefinition:
    """Return the definition that `place` has of one table.

    Raises ConfigurationError: it has no such table, or the text cannot be read.
    """
    tables = _by_name(_parts(stored, place))
    if name not in tables:
        raise ConfigurationError(
            f"{INVALID_TABLES} {place} has no table {name}; it has {', '.join(tables)}"
        )
    try:
        return _table(tables[name])
    except (TypeError, ValueError, KeyError):
        raise _unreadable(stored, place) from None


def part_of(wanted: TablesDefinition, names: Collection[str]) -> TablesDefinition:
    """Return a definition with some of its tables only."""
    return replace(wanted, tables=tuple(each for each in wanted.tables if each.name in names))


def _parts(text: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        _by_name(found)
        dict(found["decoding"]["fields"])
        _schemas(found["decoding"])
        bool(found["decoding"]["quarantine"])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        raise _unreadable(text, place) from None
    assert isinstance(found, dict)
    return found


def _unreadable(text: str, place: str) -> ConfigurationError:
    return ConfigurationError(
        f"{INVALID_TABLES} {place} has a definition that cannot be read: {text!r:.80}; run"
        " `waltz pipeline rebuild`"
    )


def _table(found: dict[str, Any]) -> TableDefinition:
    return TableDefinition(
        found["name"],
        tuple((name, text) for name, text in found["keys"]),
        tuple(Measure(**measure) for measure in found["measures"]),
        where=found["where"],
        each=found["each"],
    )


def _by_name(parts: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in parts["tables"]}


def _schemas(decoding: dict[str, Any]) -> dict[int | None, list[str]]:
    """Return the schemas of a decoding by header; None: of all headers that are not named."""
    return {header: form for header, *form in decoding.get("schemas", JSON_FOR_ALL)}


def _schema_of(schemas: dict[int | None, list[str]], header: int | None) -> list[str] | None:
    return schemas.get(header, schemas.get(None))
