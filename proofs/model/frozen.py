"""A machine as a value and back: what makes two states of the world equal.

Knows no machine by its parts: all fields of all objects in it count, except those that `FORGOTTEN`
names, so a field that is added to a machine is part of the state from then on. Equal values are
frozen to the same object, so comparing and hashing them costs nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeAlias

from waltz.limits import METADATA_RETRY_SECONDS_MIN, RETRY_SECONDS_MIN
from waltz.record import NewRecords, RecordBatch
from waltz.store.catch_up import FIRST_COPY_RECORDS

NOW: Final = 0.0
"""When everything happens, except what waits for its time."""

SOON: Final = 1.0
"""What everything that waits for its time waits for."""

LATER: Final = 1e9
"""When it happens."""


class Frozen:
    """A value that is not its own; there is one object per value."""

    __slots__ = ("parts", "thawer")

    def __init__(self, parts: tuple[Any, ...], thawer: _Thawer) -> None:
        self.parts = parts
        """Its class, and what it consists of."""
        self.thawer = thawer


_Freezer: TypeAlias = Callable[[Any], Any]
_Thawer: TypeAlias = Callable[[Sequence[Any]], Any]
_Rule: TypeAlias = Callable[[Any, Any], Any]


def _once(counts: Mapping[Any, int]) -> Frozen:
    """Which were counted, not how often."""
    frozen: Frozen = freeze(dict.fromkeys(sorted(counts), 1))
    return frozen


FORGOTTEN: Final[Mapping[str, _Rule]] = {
    # Delays and the history of delays: here everything may happen at any time.
    "SessionPace.started_at": lambda *_: NOW,
    "SessionPace._lost_at": lambda *_: None,
    "SessionPace.next_start_at": lambda *_: NOW,
    "SessionPace._delay_seconds": lambda *_: 0.0,
    "SessionPace._metadata_retry_seconds": lambda *_: METADATA_RETRY_SECONDS_MIN,
    "Recovery._metadata_retry_seconds": lambda *_: METADATA_RETRY_SECONDS_MIN,
    "ReplicaSession._retry_seconds": lambda *_: 0.0,
    "CopyReads._retry_seconds": lambda seconds, _: RETRY_SECONDS_MIN if seconds else 0.0,
    # Its time has come, or has not.
    "SessionKeeper._renew_at": lambda at, keeper: (
        SOON if at > NOW or vars(keeper)["_renewal"] is None else NOW
    ),
    "MemberChange._not_before": lambda at, _: SOON if at > NOW else NOW,
    "MemberChange.wake_at": lambda at, _: at and SOON,
    # Words for people.
    "ReplicaSession.trouble": lambda *_: "",
    "SessionKeeper._renewal": lambda reason, _: reason and "renewal",
    # More than there are records in the world.
    "CopySize._records": lambda count, _: min(count, FIRST_COPY_RECORDS),
    # An attempt given up leaves nothing behind that could be taken for the next one.
    "ReplicaLink.attempt": lambda *_: 1,
    "CopyReads.failures": lambda _, reads: _once(reads.failures),
    "Recovery._failed_reads": lambda _, recovery: _once(vars(recovery)["_failed_reads"]),
}
"""What is left of a frozen field of an object where not all of it matters, by class and name."""


def freeze(value: Any) -> Any:
    """Return what is the same object for all values that behave alike: `Frozen`, or the value."""
    cls = type(value)
    if cls in _same:
        return value
    freezer = _freezers.get(cls)
    return _freezer_of(cls)(value) if freezer is None else freezer(value)


def thaw(frozen: Any) -> Any:
    """Return a new object like the one that was frozen; what cannot change is shared."""
    return frozen.thawer(frozen.parts) if type(frozen) is Frozen else frozen


_same: set[type] = {int, str, bytes, float, bool, type(None), RecordBatch, NewRecords}
"""Classes of what is its own frozen value."""
_freezers: dict[type, _Freezer] = {}
_ones: dict[tuple[Any, ...], Frozen] = {}
_known: dict[int, Frozen] = {}
"""What objects that cannot change are frozen to, by identity; `_kept` keeps them."""
_kept: list[Any] = []


def _one(parts: tuple[Any, ...], thawer: _Thawer) -> Frozen:
    frozen = _ones.get(parts)
    if frozen is None:
        frozen = _ones[parts] = Frozen(parts, thawer)
    return frozen


def _freezer_of(cls: type) -> _Freezer:
    """Return how to freeze objects of `cls`, and remember it."""
    if issubclass(cls, Enum):
        _same.add(cls)
        return lambda value: value
    freezer: _Freezer
    if cls is dict:
        freezer = _freeze_dict
    elif cls in (tuple, list, deque):
        freezer = _sequence(cls)
    elif hasattr(cls, "_fields"):
        freezer = _fixed(cls, cls._fields)
    elif is_dataclass(cls) and cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        freezer = _fixed(cls, tuple(cls.__dataclass_fields__))
    elif hasattr(cls, "__slots__"):
        freezer = _slotted(cls, tuple(cls.__slots__))
    else:
        freezer = _open(cls)
    _freezers[cls] = freezer
    return freezer


def _frozen_parts(values: Iterable[Any]) -> list[Any]:
    return [value if type(value) in _same else freeze(value) for value in values]


def _thawed(parts: Sequence[Any]) -> list[Any]:
    """All but the first, which is the class."""
    return [part.thawer(part.parts) if type(part) is Frozen else part for part in parts[1:]]


def _sequence(cls: type) -> _Freezer:
    def thawer(parts: Sequence[Any]) -> Any:
        return cls(_thawed(parts)) if len(parts) > 1 else cls()

    empty = _one((cls,), thawer)
    return lambda value: _one((cls, *_frozen_parts(value)), thawer) if value else empty


def _freeze_dict(value: dict[Any, Any]) -> Frozen:
    return _one((dict, *_frozen_parts(chain.from_iterable(value.items()))), _thaw_dict)


def _thaw_dict(parts: Sequence[Any]) -> dict[Any, Any]:
    items = iter(_thawed(parts))
    return dict(zip(items, items, strict=True))


def _rules(cls: type, names: Sequence[str]) -> list[tuple[int, _Rule]]:
    """Return what is to be forgotten, by the field's place."""
    return [
        (place, FORGOTTEN[f"{cls.__name__}.{name}"])
        for place, name in enumerate(names, 1)
        if f"{cls.__name__}.{name}" in FORGOTTEN
    ]


def _freeze_fields(
    value: Any, fields: Iterable[Any], rules: list[tuple[int, _Rule]], thawer: _Thawer
) -> Frozen:
    parts = [type(value)]
    parts += [field if type(field) in _same else freeze(field) for field in fields]
    for place, rule in rules:
        parts[place] = rule(parts[place], value)
    return _one(tuple(parts), thawer)


def _fixed(cls: type, names: tuple[str, ...]) -> _Freezer:
    """For objects that never change."""
    rules = _rules(cls, names)

    def freezer(value: Any) -> Frozen:
        known = _known.get(id(value))
        if known is not None:
            return known
        frozen = _freeze_fields(value, [getattr(value, name) for name in names], rules, thawer)
        if frozen.thawer is thawer:
            thawed = cls(*_thawed(frozen.parts))
            _kept.append(thawed)
            _known[id(thawed)] = frozen
            frozen.thawer = lambda _: thawed
        return frozen

    def thawer(_: Sequence[Any]) -> Any:
        raise AssertionError("replaced as soon as there is one to thaw")

    return freezer


def _slotted(cls: type, names: tuple[str, ...]) -> _Freezer:
    rules = _rules(cls, names)
    fields = attrgetter(*names)

    def thawer(parts: Sequence[Any]) -> Any:
        value: Any = object.__new__(cls)
        for name, part in zip(names, _thawed(parts), strict=True):
            setattr(value, name, part)
        return value

    return lambda value: _freeze_fields(value, fields(value), rules, thawer)


def _open(cls: type) -> _Freezer:
    """For objects with a dictionary, which has all its names once `__init__` is done."""
    names: list[str] = []
    rules: list[tuple[int, _Rule]] = []

    def freezer(value: Any) -> Frozen:
        fields = vars(value)
        if not names:
            names.extend(fields)
            rules.extend(_rules(cls, names))
        assert len(fields) == len(names)
        return _freeze_fields(value, fields.values(), rules, thawer)

    def thawer(parts: Sequence[Any]) -> Any:
        value: Any = object.__new__(cls)
        value.__dict__.update(zip(names, _thawed(parts), strict=True))
        return value

    return freezer
