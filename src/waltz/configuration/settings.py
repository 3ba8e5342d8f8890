"""Judges a configuration: the content of a file, options that override it, every fault named.

Owns the texts of faults; a secret, and the value of an unknown key, is never shown. Knows no key by
name, and opens no file.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from waltz.configuration.keys import Key
from waltz.errors import ConfigurationError

T = TypeVar("T")

HIDDEN: Final = "(hidden)"


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was given, and its source: a file or an option."""

    value: object
    origin: str


class Settings:
    """Values that were judged, with warnings."""

    def __init__(
        self,
        keys: Sequence[Key[Any]],
        values: Mapping[str, Given],
        warnings: Sequence[str],
        refused: Collection[str] = (),
    ) -> None:
        """`refused` are keys that were given invalid values."""
        self._keys = keys
        self._values = values
        self._refused = frozenset(refused)
        self.warnings = tuple(warnings)

    def get(self, key: Key[T]) -> T | None:
        """Return the value that was set, or else the default, or else None."""
        given = self._values.get(key.name)
        return key.default if given is None else given.value  # type: ignore[return-value]

    def __getitem__(self, key: Key[T]) -> T:
        """Return the value of a key that is required or has a default."""
        value = self.get(key)
        assert value is not None, key.name
        return value

    def is_set(self, key: Key[Any]) -> bool:
        """Whether a value was given, valid or refused: a key with a refused value must not be
        reported as missing."""
        return key.name in self._values or key.name in self._refused

    def is_sound(self, key: Key[Any]) -> bool:
        """Whether the key was given no invalid value."""
        return key.name not in self._refused

    def lines(self) -> Iterator[str]:
        """Yield all values in force, each as a line of YAML with its source."""
        for key in self._keys:
            given = self._values.get(key.name)
            if given is not None:
                shown = HIDDEN if key.secret else key.kind.show(given.value)
                yield f"{key.name}: {shown}  # {given.origin}"
            elif key.default_text:
                yield f"# {key.name}: {key.default_text}"
            elif key.default is not None:
                yield f"{key.name}: {key.shown_default}  # default"


def judge(
    keys: Sequence[Key[Any]], given: Mapping[str, Given], *, one_of: Sequence[Key[Any]] = ()
) -> Settings:
    """Return the settings of `given`, which must have exactly one of `one_of`.

    Raises ConfigurationError: all faults, with key, value and expectation.
    """
    settings, faults = weigh(keys, given, one_of=one_of)
    raise_faults(faults)
    return settings


def weigh(
    keys: Sequence[Key[Any]], given: Mapping[str, Given], *, one_of: Sequence[Key[Any]] = ()
) -> tuple[Settings, list[str]]:
    """Return the settings of the valid part of `given`, and every fault of the rest, so that the
    meaning of keys together can be judged before any fault is raised."""
    known = {key.name: key for key in keys}
    values: dict[str, Given] = {}
    faults: list[str] = []
    warnings: list[str] = []
    for name, found in given.items():
        key = known.get(name)
        if key is None:
            if _is_guarded(name, keys):
                faults.append(f"{name} ({found.origin}) is not known{_hint(name, known)}")
            else:
                warnings.append(
                    f"{name} ({found.origin}) is not known and ignored{_hint(name, known)}"
                )
            continue
        if key.unused:
            warnings.append(f"{name} ({found.origin}) has no effect: {key.unused}")
        try:
            values[name] = Given(key.kind.convert(found.value), found.origin)
        except (ValueError, OverflowError):
            shown = HIDDEN if key.secret else repr(found.value)
            faults.append(f"{name} ({found.origin}) is {shown}; expected {key.kind.expectation}")
    for key in keys:
        if key.required and key.name not in given:
            option = f", or as {key.option}" if key.option else ""
            faults.append(f"{key.name} is missing; give it in the configuration file{option}")
    faults += _not_one(one_of, given)
    refused = [name for name in given if name in known and name not in values]
    return Settings(keys, values, warnings, refused), faults


def _not_one(keys: Sequence[Key[Any]], given: Mapping[str, Given]) -> list[str]:
    there = [f"{key.name} ({given[key.name].origin})" for key in keys if key.name in given]
    if len(there) > 1:
        return [f"{' and '.join(there)} exclude each other; keep one of them"]
    if keys and not there:
        first, *others = keys
        names = " or ".join(key.name for key in others)
        given_as = f"give it, or {names}, in the configuration file, or {first.option}"
        return [f"{first.name} is missing; {given_as}"]
    return []


def raise_faults(faults: Sequence[str]) -> None:
    """Raises ConfigurationError: there are faults."""
    if len(faults) == 1:
        raise ConfigurationError(f"configuration: {faults[0]}")
    if faults:
        lines = "".join(f"\n  {fault}" for fault in faults)
        raise ConfigurationError(f"configuration: {len(faults)} faults{lines}")


def different(settings: Settings, keys: Iterable[Key[int]]) -> list[str]:
    """Return a fault for every two of `keys` with the same value; the value is not shown."""
    chosen = [(key.name, value) for key in keys if (value := settings.get(key)) is not None]
    return [
        f"{one} and {other} are the same port; give each its own"
        for index, (one, value) in enumerate(chosen)
        for other, second in chosen[index + 1 :]
        if value == second
    ]


def _is_guarded(name: str, keys: Sequence[Key[Any]]) -> bool:
    """Whether `name` may be a misspelt key that asks for safety, which must not be ignored."""
    return any(
        name == key.guarded or name.startswith(f"{key.guarded}.") for key in keys if key.guarded
    )


def _hint(name: str, known: Iterable[str]) -> str:
    folded = {key.lower(): key for key in known}
    found = difflib.get_close_matches(name.lower(), folded, n=1)
    return f"; did you mean {folded[found[0]]}?" if found else ""
