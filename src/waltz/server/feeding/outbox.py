"""The messages of one step to its clients, gathered per connection.

All that one step says to one connection leaves in one write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from waltz.wire.logical_link import Shared
from waltz.wire.message import Message

Part: TypeAlias = Message | Shared


@dataclass(frozen=True, slots=True)
class Send:
    """Write `parts`, in order, to the connection if it is still there."""

    connection_id: int
    parts: tuple[Part, ...]


class Outbox:
    """Collects parts; connections in the order in which they were first spoken to."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Part]] = {}

    def add(self, connection_id: int, part: Part) -> None:
        parts = self._parts.get(connection_id)
        if parts is None:
            self._parts[connection_id] = [part]
        else:
            parts.append(part)

    def take(self) -> list[Send]:
        """Return what was collected, once."""
        if not self._parts:
            return []
        parts_by_connection, self._parts = self._parts, {}
        return [Send(connection, tuple(parts)) for connection, parts in parts_by_connection.items()]
