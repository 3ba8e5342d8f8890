"""The clients that are told of changes of the cluster, and when each is told.

Owns the subscribers and those that have not been told the newest yet. Must not know connections or
what is told. Changes that come in quick succession are told once, and a connection that has more to
send than it should is told when it has room again: both bound what a restless cluster costs.
Always: a subscriber that is behind is told at a known time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

TOPOLOGY_PUSH_SECONDS: Final = 0.1
"""Between two changes of the cluster that a server tells."""


@dataclass(frozen=True, slots=True)
class TopologyChanged:
    """There is something new to tell."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The connection was told what there is now, and wants to hear more."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class SubscriberLeft:
    connection_id: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The server stops."""


Event: TypeAlias = TopologyChanged | Subscribed | SubscriberLeft | Stopped


@dataclass(frozen=True, slots=True)
class TellTopology:
    """Tell these connections what there is now."""

    connection_ids: tuple[int, ...]


class Subscriptions:
    """See the module. `full` are the connections that must not be sent to now."""

    def __init__(self, full: Collection[int]) -> None:
        self.closed = False
        self._full = full
        self._subscribers: dict[int, None] = {}
        self._behind: dict[int, None] = {}
        self._due_at: float | None = None
        self._told_at: float | None = None

    @property
    def deadline(self) -> float | None:
        return self._due_at

    def step(self, events: Sequence[Event], now: float) -> Sequence[TellTopology]:
        for event in events:
            match event:
                case TopologyChanged():
                    self._behind = dict(self._subscribers)
                case Subscribed():
                    self._subscribers[event.connection_id] = None
                case SubscriberLeft():
                    self._subscribers.pop(event.connection_id, None)
                    self._behind.pop(event.connection_id, None)
                case Stopped():
                    self._subscribers, self._behind = {}, {}
                    self.closed = True
                case _:
                    assert_never(event)
        if not self._behind:
            self._due_at = None
            return []
        if self._due_at is None:
            earliest = now if self._told_at is None else self._told_at + TOPOLOGY_PUSH_SECONDS
            self._due_at = max(now, earliest)
        if now < self._due_at:
            return []
        told = tuple(each for each in self._behind if each not in self._full)
        for connection_id in told:
            del self._behind[connection_id]
        self._told_at = now
        self._due_at = now + TOPOLOGY_PUSH_SECONDS if self._behind else None
        return [TellTopology(told)] if told else []

    def check_invariants(self) -> None:
        assert self._behind.keys() <= self._subscribers.keys()
        assert bool(self._behind) == (self._due_at is not None)
