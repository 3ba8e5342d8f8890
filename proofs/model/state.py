"""What a state of the world is made of, and what may happen to it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from proofs.model.frozen import Frozen
from waltz.types import Generation, ReplicaId, SessionId

State: TypeAlias = tuple[int, ...]


class Budget(NamedTuple):
    """What was used up of a scope."""

    appends: int = 0
    cuts: int = 0
    crashes: int = 0
    blanks: int = 0
    rollbacks: int = 0
    replacements: int = 0
    lost_writes: int = 0
    set_backs: int = 0


class Coordinator(NamedTuple):
    metadata: Frozen
    version: int
    session_id: SessionId
    generation: Generation
    assigned: tuple[ReplicaId, ...]
    last_session: SessionId
    """The last one that took appends."""
    copy: Frozen | None = None
    """Metadata that may be put back."""


Part = TypeVar("Part", bound=Hashable)


class Parts(Generic[Part]):
    """Values of one kind, by number."""

    def __init__(self) -> None:
        self._known: list[Part] = []
        self._numbers: dict[Part, int] = {}

    def __getitem__(self, number: int) -> Part:
        return self._known[number]

    def __len__(self) -> int:
        return len(self._known)

    def number(self, part: Part) -> int:
        number = self._numbers.get(part)
        if number is None:
            number = self._numbers[part] = len(self._known)
            self._known.append(part)
        return number


class Action(NamedTuple):
    """`verb` names a method of `ModelScene`."""

    verb: str
    server: int = -1
    replica: int = -1
    number: int = 0
    """Of records, or a place among ghosts or in the assignment."""
