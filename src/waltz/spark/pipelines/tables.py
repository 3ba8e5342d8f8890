"""The definitions of a pipeline's tables, from its file: parsed YAML in, values out.
Nothing is read but the files of schemas that the definition names.

Expressions are Spark SQL over the columns of the log and the fields of the decoded data. Every
measure can be added to later: its value for old transactions and its value for new ones give its
value for all of them at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_DEFINITION
from waltz.spark.pipelines.schemas import JSON_ONLY, Schemas, field_names, parse_schemas

Function = Literal["count", "count_if", "sum", "min", "max", "first", "last"]

MEASURE: Final = re.compile(r"\s*(count|count_if|sum|min|max|first|last)\s*\((.*)\)\s*", re.DOTALL)
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
ELEMENT: Final = "element"
"""The name of an element where a table has a row for each element of an array."""

PLACES: Final = (
    "first_partition",
    "first_transaction_id",
    "last_partition",
    "last_transaction_id",
)
"""Columns of every table: the first and the last transaction of a row."""

LOG_COLUMNS: Final = ("partition", "transaction_id", "request_id", "header", "data")
"""The columns of the log, which stand next to the fields of the data; no field has their names."""

RESERVED: Final = ("waltz_", "sqlite_")
TABLE_KEYS: Final = ("where", "each", "keys", "measures")
DECODE_KEYS: Final = ("fields", "undecodable", "schemas")


@dataclass(frozen=True, slots=True)
class Measure:
    """A column that is computed of all transactions of a row."""

    name: str
    function: Function
    expression: str


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table: one row for each value of its `keys`, pairs of name and expression.

    where  a condition on transactions, or on their elements; None for all of them.
    each   an array expression whose elements are rows of their own; None for whole transactions.
    """

    name: str
    keys: tuple[tuple[str, str], ...]
    measures: tuple[Measure, ...]
    where: str | None = None
    each: str | None = None


def columns_of(definition: TableDefinition) -> list[str]:
    """Return the columns of a table, in their order."""
    keys = (name for name, _ in definition.keys)
    return [*keys, *(each.name for each in definition.measures), *PLACES]


@dataclass(frozen=True, slots=True)
class Decoding:
    """The decoding of data into fields, with a Spark type for each field; no fields, no decoding.
    The header of a transaction says by which schema; without schemas data is JSON.

    `quarantine`: transactions whose data cannot be decoded are put into a table of their own;
    otherwise a run fails at the first of them.
    """

    fields: tuple[tuple[str, str], ...] = ()
    quarantine: bool = False
    schemas: Schemas = JSON_ONLY


@dataclass(frozen=True, slots=True)
class TablesDefinition:
    """Every table that one scan of the log goes into."""

    tables: tuple[TableDefinition, ...]
    decoding: Decoding = Decoding()

    def fingerprint(self) -> str:
        """Return a text that two definitions share if their tables may be continued."""
        found = asdict(self)
        del found["decoding"]["schemas"]
        if self.decoding.schemas != JSON_ONLY:  # otherwise as it was before there were others
            found["decoding"]["schemas"] = [
                [header, *schema.fingerprint()] for header, schema in self.decoding.schemas
            ]
        return json.dumps(found, sort_keys=True)


def parse_tables(tables: object, decode: object, directory: Path = Path()) -> TablesDefinition:
    """Return the definitions under the keys `tables` and `decode` of a file; the paths of schemas
    are relative to `directory`. Raises ConfigurationError."""
    found = expect_mapping("tables", tables)
    if not found:
        raise mistake("tables is empty; expected a name and a definition for each")
    names = _names("tables", found)
    parsed = tuple(_table(name, found[name]) for name in names)
    return TablesDefinition(parsed, _decoding(decode, directory))


def _decoding(decode: object, directory: Path) -> Decoding:
    if decode is None:
        return Decoding()
    found = expect_mapping("decode", decode, DECODE_KEYS)
    fields = expect_mapping("decode: fields", found.get("fields", {}))
    names = _names("decode: fields", fields, taken=LOG_COLUMNS)
    undecodable = found.get("undecodable", "fail")
    if undecodable not in ("fail", "quarantine"):
        raise mistake(f"decode: undecodable is {undecodable!r}; expected fail or quarantine")
    schemas = JSON_ONLY
    if "schemas" in found:
        if not fields:
            raise mistake("decode: schemas without fields; expected the fields that tables use")
        given = found["schemas"]
        if not isinstance(given, dict):
            raise mistake(f"decode: schemas is {given!r:.80}; expected a format for each header")
        schemas = parse_schemas(given, directory)
        known = field_names(schemas)
        for name in fields:
            if known is not None and name not in known:
                raise mistake(f"decode: field {name} is in none of the schemas")
    return Decoding(
        tuple((name, str(fields[name])) for name in names),
        quarantine=undecodable == "quarantine",
        schemas=schemas,
    )


def _table(name: str, definition: object) -> TableDefinition:
    where = f"table {name}"
    found = expect_mapping(where, definition, TABLE_KEYS)
    for key in ("keys", "measures"):
        if key not in found:
            raise mistake(f"{where}: {key} is missing")
    keys = found["keys"]
    if isinstance(keys, list):  # columns are their own expressions
        keys = {str(each): str(each) for each in keys}
    keys = expect_mapping(f"{where}: keys", keys)
    if not keys:
        raise mistake(f"{where}: keys is empty; a table of one row has `keys: {{all: 1}}`")
    measures = expect_mapping(f"{where}: measures", found["measures"])
    _names(where, [*keys, *measures], taken=PLACES)
    return TableDefinition(
        name,
        tuple((key, str(keys[key])) for key in keys),
        tuple(_measure(where, each, measures[each]) for each in measures),
        where=str(found["where"]) if "where" in found else None,
        each=str(found["each"]) if "each" in found else None,
    )


def _measure(where: str, name: str, text: object) -> Measure:
    found = MEASURE.fullmatch(str(text))
    if found is None:
        raise mistake(
            f"{where}: measure {name} is {text!r}; expected count, count_if, sum, min, max, first"
            " or last of an expression, since others cannot be added to later"
        )
    return Measure(name, found[1], found[2].strip())  # type: ignore[arg-type]


def _names(where: str, names: Collection[str], taken: Collection[str] = ()) -> list[str]:
    seen = {each.lower() for each in taken}
    for name in names:
        if not NAME.fullmatch(name):
            raise mistake(f"{where} has the name {name!r}; expected letters, digits and _")
        if name.lower().startswith(RESERVED) or name.lower() in seen:
            raise mistake(f"{where} has the name {name!r}, which is taken")
        seen.add(name.lower())
    return list(names)


def expect_mapping(name: str, found: object, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Return `found`, which the file has under `name`. Raises ConfigurationError: it has other
    keys."""
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise mistake(f"{name} is {found!r:.80}; expected keys")
    for key in found:
        if keys is not None and key not in keys:
            raise mistake(f"{name} has the unknown key {key!r}; known are {', '.join(keys)}")
    return found


def mistake(text: str) -> ConfigurationError:
    """Return the error for a mistake in a definition."""
    return ConfigurationError(f"{INVALID_DEFINITION} {text}")
