"""The keys that say by which name peers are known, the same for servers and storage nodes."""

from __future__ import annotations

from typing import Final

from waltz.configuration.keys import Key, ValueKind
from waltz.types import NAME_SOURCES, NameSource


def name_sources() -> ValueKind[tuple[NameSource, ...]]:
    """Return the kind of orders of names; no source may stand twice."""

    def convert(value: object) -> tuple[NameSource, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not all(isinstance(each, str) for each in parts):
            raise ValueError
        found = tuple(NameSource(each.strip()) for each in parts)
        if not found or len(set(found)) != len(found):
            raise ValueError
        return found

    def show(value: tuple[NameSource, ...]) -> str:
        return ", ".join(each.value for each in value)

    return ValueKind(f"some of {show(NAME_SOURCES)}, each once", convert, show)


PRINCIPAL_FROM: Final = Key(
    name="access.principalFrom",
    kind=name_sources(),
    default=NAME_SOURCES,
    guarded="access",
    description="Kinds of names in a peer's verified certificate of which the first one there is"
    " becomes its principal: URI and DNS name among the subject alternative names, common name,"
    " whole subject.",
)
