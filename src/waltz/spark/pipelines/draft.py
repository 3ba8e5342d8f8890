"""A first definition of tables, drafted from a sample of the log.

Pure: transactions in, the text of a definition out, with what was seen as comments. A draft says
only what holds for the sample; a run judges it as any other definition. Owns the guesses: the
format of each header's data, the types of fields, and a table or two to begin with.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from waltz.envelope import payload
from waltz.spark.pipelines.tables import LOG_COLUMNS, NAME, RESERVED

FIELDS_MAX: Final = 60
"""Fields of a draft; further ones are only named."""

DEPTH_MAX: Final = 4
"""Levels of arrays and structures in a type; what is deeper is left out."""

SUMS_MAX: Final = 3
"""Measures that the table of a key adds up."""

LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1
NO_FIELDS: Final = frozenset({*LOG_COLUMNS, "element", "position"})
"""Names that a field cannot have: columns of the log, and of its elements."""

TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?")
PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

ENDINGS_OF_KEYS: Final = ("id", "account", "key", "number", "customer", "user")

Kind = str | tuple[str, Any] | None
"""The type of a value: a scalar's name, `("array", kind)`, `("struct", {name: kind})`; None: only
nulls were seen. `MIXED` and `TOO_DEEP` are kinds that no field of a definition has."""

WORDS_OF_YAML: Final = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
"""Names that YAML would take for values."""

JOINED: Final = {
    frozenset(("bigint", "double")): "double",
    frozenset(("string", "timestamp")): "string",
}
"""Kinds of values of two kinds, which one type takes."""

MIXED: Final = "values of several types"
TOO_DEEP: Final = "more than four levels"


@dataclass(frozen=True, slots=True)
class Sample:
    """A transaction that was looked at."""

    header: int
    data: bytes


@dataclass(slots=True)
class _Field:
    """A field as it was seen; `values` are those of numbers and texts, to see which repeat."""

    kind: Kind = None
    seen: int = 0
    values: Counter[Any] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Draft:
    """The text of a definition, and what it was made from.

    sampled    transactions that were looked at.
    decodable  those whose data is a JSON object or a MessagePack map.
    fields     the fields of the definition, each with its type.
    left_out   fields that the definition does not have, each with the reason.
    """

    text: str
    sampled: int
    decodable: int
    fields: Mapping[str, str]
    left_out: Mapping[str, str]


def draft(
    samples: Sequence[Sample],
    cluster: str,
    target: str,
    seen_in: str,
    tls: Mapping[str, str] | None = None,
) -> Draft:
    """Return a definition of tables for a log like `samples`; `seen_in` says in words what they
    are, `tls` has the files of the key `tls`."""
    formats: dict[int, Counter[str]] = {}
    fields: dict[str, _Field] = {}
    for each in samples:
        name, value = _decoded(payload(each.data))
        formats.setdefault(each.header, Counter())[name] += 1
        for key, found in (value or {}).items():
            _note(fields.setdefault(key, _Field()), found, is_json=name == "json")
    decodable = sum(count.total() - count[OPAQUE] for count in formats.values())
    chosen, left_out = _choose(fields)
    lines = [
        f"# Drafted from {seen_in}: {decodable:,} have data that is an object in",
        "# JSON or a map in MessagePack. Before the first run change what you like: the fields",
        "# that are decoded, and the tables. docs/pipelines.md has all that may stand here.",
        "pipeline: tables",
        f"cluster: {json.dumps(cluster)}",
        f"target: {json.dumps(target)}",
    ]
    if tls:
        lines.append(f"tls: {json.dumps(dict(tls))}")
    if chosen:
        lines += _decode_lines(formats, fields, chosen, len(samples))
    lines += [f"# field {json.dumps(name)} is left out: {left_out[name]}" for name in left_out]
    lines += [
        "tables:",
        "  headers:                      # one row for each header",
        "    keys: {header: header}",
        "    measures:",
        "      transactions: count(*)",
    ]
    row_key = _key(fields, chosen, decodable)
    if row_key is not None:
        lines += _table_lines(chosen, row_key)
    return Draft("\n".join(lines) + "\n", len(samples), decodable, chosen, left_out)


OPAQUE: Final = "neither"


def _decoded(data: bytes) -> tuple[str, Mapping[str, Any] | None]:
    """Return the format of an object with names, and the object; `OPAQUE`: it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        pass
    else:
        return ("json", found) if isinstance(found, dict) else (OPAQUE, None)
    if not data or not (0x80 <= data[0] <= 0x8F or data[0] in (0xDE, 0xDF)):
        return OPAQUE, None
    try:
        import msgpack

        found = msgpack.unpackb(data)
    except ImportError:
        return OPAQUE, None
    except Exception:  # whatever the library has for data of others
        return OPAQUE, None
    is_object = isinstance(found, dict) and all(isinstance(each, str) for each in found)
    return ("msgpack", found) if is_object else (OPAQUE, None)


def _note(known: _Field, value: Any, *, is_json: bool) -> None:
    known.seen += value is not None
    known.kind = _joined(known.kind, _kind_of(value, DEPTH_MAX, is_json=is_json))
    if isinstance(value, str | int) and not isinstance(value, bool):
        known.values[value] += 1


def _kind_of(value: Any, depth: int, *, is_json: bool) -> Kind:
    """Return the kind of a value; texts are times in JSON only, which has no others."""
    if depth == 0 and isinstance(value, list | dict):
        return TOO_DEEP
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            return "bigint" if LONG_MIN <= value <= LONG_MAX else MIXED
        case float():
            return "double"
        case str():
            return "timestamp" if is_json and _is_time(value) else "string"
        case bytes():
            return "binary"
        case list():
            kind: Kind = None
            for each in value:
                kind = _joined(kind, _kind_of(each, depth - 1, is_json=is_json))
            return "array", kind
        case dict():
            kinds = {
                str(name): _kind_of(each, depth - 1, is_json=is_json)
                for name, each in value.items()
            }
            return "struct", kinds
    return MIXED


def _is_time(text: str) -> bool:
    if TIME.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _joined(one: Kind, other: Kind) -> Kind:
    """Return the kind that values of both kinds have."""
    if one is None or one == other:
        return other
    if other is None:
        return one
    if isinstance(one, str) and isinstance(other, str):
        return JOINED.get(frozenset((one, other)), MIXED)
    if isinstance(one, tuple) and isinstance(other, tuple) and one[0] == other[0]:
        if one[0] == "array":
            return "array", _joined(one[1], other[1])
        names = {**one[1], **other[1]}
        return "struct", {name: _joined(one[1].get(name), other[1].get(name)) for name in names}
    return MIXED


def _choose(fields: Mapping[str, _Field]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fields of the definition with their types, and the others with the reason."""
    chosen: dict[str, str] = {}
    left_out: dict[str, str] = {}
    taken: set[str] = set()
    for name, known in sorted(fields.items(), key=lambda each: (-each[1].seen, each[0])):
        text = _text(known.kind)
        if not NAME.fullmatch(name) or name.lower().startswith(RESERVED):
            left_out[name] = "a field's name has letters, digits and _ only"
        elif name.lower() in NO_FIELDS:
            left_out[name] = "the log has a column of this name"
        elif name.lower() in taken:
            left_out[name] = "another field has the same name in other letters"
        elif text is None:
            left_out[name] = _reason(known.kind)
        elif len(chosen) == FIELDS_MAX:
            left_out[name] = f"{FIELDS_MAX} others were seen more often"
        else:
            chosen[name] = text
            taken.add(name.lower())
    return chosen, left_out


def _text(kind: Kind) -> str | None:
    """Return the type as a definition has it; None: there is none."""
    if isinstance(kind, tuple):
        if kind[0] == "array":
            inner = _text(kind[1])
            return None if inner is None else f"array<{inner}>"
        parts = {name: _text(each) for name, each in kind[1].items() if PLAIN.fullmatch(name)}
        known = [f"`{name}`: {each}" for name, each in parts.items() if each is not None]
        return f"struct<{', '.join(known)}>" if known else None
    return None if kind is None or kind in (MIXED, TOO_DEEP) else kind


def _reason(kind: Kind) -> str:
    if kind in (MIXED, TOO_DEEP):
        return f"it has {kind}"
    return "only nulls, or nothing with a type, were seen"


def _decode_lines(
    formats: Mapping[int, Counter[str]],
    fields: Mapping[str, _Field],
    chosen: Mapping[str, str],
    sampled: int,
) -> Iterable[str]:
    yield "decode:"
    yield "  fields:"
    for name, kind in chosen.items():
        count = fields[name].seen
        comment = "" if count == sampled else f"    # in {count:,}"
        yield f"    {_quoted(name)}: {json.dumps(kind)}{comment}"
    best = {
        header: "json" if count["json"] >= count["msgpack"] else "msgpack"
        for header, count in sorted(formats.items())
        if count.total() > count[OPAQUE]
    }
    if "msgpack" in best.values():
        yield "  schemas:"
        yield from (f"    {header}: {name}" for header, name in best.items())
    yield "  undecodable: quarantine       # data that is otherwise is put aside, and counted"


def _key(fields: Mapping[str, _Field], chosen: Mapping[str, str], decodable: int) -> str | None:
    """Return a field by which there are fewer rows than transactions: a number or a text that most
    transactions have, and that repeats; the one with the most values, names of keys first."""
    found = []
    for name, kind in chosen.items():
        values = fields[name].values
        is_key = kind in ("bigint", "string") and values.total() >= 0.9 * decodable
        if is_key and 2 <= len(values) <= values.total() / 2:
            found.append((name.lower().endswith(ENDINGS_OF_KEYS), len(values), name))
    return max(found)[2] if found else None


def _table_lines(chosen: Mapping[str, str], key: str) -> Iterable[str]:
    yield f"  by_{key}:"
    yield f"    where: {key} is not null"
    yield "    keys:"
    yield f"      {_quoted(key)}: {_quoted(key)}"
    yield "    measures:"
    yield "      transactions: count(*)"
    numbers = [
        name
        for name, kind in chosen.items()
        if kind == "bigint" and name != key and not name.lower().endswith("id")
    ]
    for name in numbers[:SUMS_MAX]:
        yield f"      {name}_sum: sum({name})"
    for name, kind in chosen.items():
        if kind == "timestamp":
            yield f"      last_{name}: max({name})"
            break


def _quoted(name: str) -> str:
    """Return a name as YAML has it: some are values there, such as `on`."""
    return name if name.lower() not in WORDS_OF_YAML else json.dumps(name)
