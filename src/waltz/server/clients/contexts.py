"""The logical connections that a server keeps, with their clients and the time they are kept.

Owns their IDs, and for those whose TCP connection has ended the time until which they can be
restored. Must not know sockets, partitions or what is kept of a connection. Always: an ID leads to
one connection, no request restores it twice, a broken one is released at a known time, and their
number and bytes are bounded (LC-45 to LC-53, LC-70). Source: IEP-90, "Logical connection".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never
from uuid import UUID

from waltz.types import CertificateNames, LocalUser

BROKEN_CONNECTIONS_MAX: Final = 1_000
BROKEN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Logical connections that a server keeps without a TCP connection, and what they hold together."""


@dataclass(frozen=True, slots=True)
class ContextOpened:
    """`proven` is what proves who the peer is: the local user, or the names in its certificate;
    None without either."""

    connection_id: int
    key: UUID
    proven: CertificateNames | LocalUser | None


@dataclass(frozen=True, slots=True)
class ContextBroken:
    """Its TCP connection has ended; `byte_count` is what is kept of it."""

    connection_id: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class ContextClosed:
    """It was given up by either side."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class RestoreRequested:
    """Somebody presents an ID, for the `attempt`th time. The answer is the last effect: restored or
    refused."""

    key: UUID
    proven: CertificateNames | LocalUser | None
    attempt: int


Event: TypeAlias = ContextOpened | ContextBroken | ContextClosed | RestoreRequested


@dataclass(frozen=True, slots=True)
class ReleaseContext:
    """Nobody can restore it any more: free everything."""

    connection_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreContext:
    """The new TCP connection carries it from now on; one that still does is closed."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class RefuseRestore:
    reason: str


Effect: TypeAlias = ReleaseContext | RestoreContext | RefuseRestore

UNKNOWN = "connection unknown"
REPEATED = "the request to restore the connection repeats an earlier one"
EXPIRED = "the client did not restore the connection in time"
CROWDED = "too many connections wait to be restored"


@dataclass(slots=True)
class _Context:
    key: UUID
    proven: CertificateNames | LocalUser | None
    attempt: int = 0
    """The last one that has restored it."""
    broken_until: float | None = None
    byte_count: int = 0


class Contexts:
    """See the module."""

    def __init__(
        self,
        restore_seconds: float,
        *,
        broken_max: int = BROKEN_CONNECTIONS_MAX,
        broken_bytes_max: int = BROKEN_BYTES_MAX,
    ) -> None:
        self._restore_seconds = restore_seconds
        self._broken_max = broken_max
        self._broken_bytes_max = broken_bytes_max
        self._contexts: dict[int, _Context] = {}
        self._ids: dict[UUID, int] = {}
        self._broken: dict[int, None] = {}
        """In the order in which they broke, which is that of their deadlines."""
        self._broken_bytes = 0
        self._effects: list[Effect] = []

    def __len__(self) -> int:
        return len(self._contexts)

    @property
    def broken_count(self) -> int:
        return len(self._broken)

    @property
    def deadline(self) -> float | None:
        if not self._broken:
            return None
        return self._contexts[next(iter(self._broken))].broken_until

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        self._effects = []
        self._expire(now)
        for event in events:
            match event:
                case ContextOpened():
                    self._contexts[event.connection_id] = _Context(event.key, event.proven)
                    self._ids[event.key] = event.connection_id
                case ContextBroken():
                    self._break(event, now)
                case ContextClosed():
                    self._forget(event.connection_id)
                case RestoreRequested():
                    self._restore(event)
                case _:
                    assert_never(event)
        return self._effects

    def check_invariants(self) -> None:
        assert {key: self._contexts[each].key for key, each in self._ids.items()} == {
            key: key for key in self._ids
        }
        assert len(self._ids) == len(self._contexts)
        broken = [key for key, each in self._contexts.items() if each.broken_until is not None]
        assert sorted(self._broken) == sorted(broken)
        assert len(broken) <= self._broken_max
        assert self._broken_bytes == sum(self._contexts[each].byte_count for each in broken)
        deadlines = [self._contexts[each].broken_until or 0.0 for each in self._broken]
        assert deadlines == sorted(deadlines)

    def _expire(self, now: float) -> None:
        while (deadline := self.deadline) is not None and deadline <= now:
            self._release_oldest(EXPIRED)

    def _break(self, event: ContextBroken, now: float) -> None:
        context = self._contexts.get(event.connection_id)
        if context is None or context.broken_until is not None:
            return
        context.broken_until = now + self._restore_seconds
        context.byte_count = event.byte_count
        self._broken[event.connection_id] = None
        self._broken_bytes += event.byte_count
        while len(self._broken) > self._broken_max or self._broken_bytes > self._broken_bytes_max:
            self._release_oldest(CROWDED)

    def _restore(self, event: RestoreRequested) -> None:
        connection_id = self._ids.get(event.key)
        if connection_id is None or self._contexts[connection_id].proven != event.proven:
            # Whether somebody else's connection is there is nobody's business.
            self._effects.append(RefuseRestore(UNKNOWN))
            return
        context = self._contexts[connection_id]
        if event.attempt <= context.attempt:
            # What follows it has come before, and would count as what comes next.
            self._effects.append(RefuseRestore(REPEATED))
            return
        context.attempt = event.attempt
        self._mend(connection_id)
        self._effects.append(RestoreContext(connection_id))

    def _release_oldest(self, reason: str) -> None:
        oldest = next(iter(self._broken))
        self._forget(oldest)
        self._effects.append(ReleaseContext(oldest, reason))

    def _forget(self, connection_id: int) -> None:
        if connection_id in self._contexts:
            self._mend(connection_id)
            del self._ids[self._contexts.pop(connection_id).key]

    def _mend(self, connection_id: int) -> None:
        context = self._contexts[connection_id]
        if context.broken_until is not None:
            del self._broken[connection_id]
            self._broken_bytes -= context.byte_count
            context.broken_until = None
            context.byte_count = 0
