"""Decides how to connect to one node: resolve its name, then try the addresses found.

Owns the order of attempts and the reasons of failed attempts. Must not know resolvers, sockets or
what is said afterwards: a node that can be connected to is found, and if its handshake fails no
other address of the same name is tried, for all addresses of a name count as one node. Always:
exactly one step is under way until the machine is closed. Randomness comes with the events. Source:
IEP-90, "Node connection establishment".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from waltz.types import Address


@dataclass(frozen=True, slots=True)
class ConnectionWanted:
    """Begin to connect."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The name resolved to these addresses, at least one; `draws` has a number from 0 to 1 for
    each."""

    addresses: Sequence[Address]
    draws: Sequence[float]


@dataclass(frozen=True, slots=True)
class NotResolved:
    reason: str


@dataclass(frozen=True, slots=True)
class TransportOpened:
    """The TCP connection is open, and TLS on it if TLS is used."""


@dataclass(frozen=True, slots=True)
class TransportFailed:
    reason: str


Event: TypeAlias = ConnectionWanted | Resolved | NotResolved | TransportOpened | TransportFailed


@dataclass(frozen=True, slots=True)
class Resolve:
    """Resolve the name, anew for every connection."""

    address: Address


@dataclass(frozen=True, slots=True)
class OpenTransport:
    """Connect to `address`, one of those that the name resolved to."""

    address: Address


@dataclass(frozen=True, slots=True)
class NodeFound:
    """The transport is open: the handshake is next."""


@dataclass(frozen=True, slots=True)
class NodeNotFound:
    """The node cannot be reached now; `reason` has the reason of each of its addresses."""

    reason: str


Effect: TypeAlias = Resolve | OpenTransport | NodeFound | NodeNotFound


class NodeConnection:
    """See the module. Made for one address, used once."""

    def __init__(self, address: Address) -> None:
        self.closed = False
        self._address = address
        self._waiting: deque[Address] = deque()
        self._reasons: list[str] = []

    @property
    def deadline(self) -> float | None:
        """Return None: every attempt has its own time-out."""
        return None

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        return [self._take(event) for event in events]

    def check_invariants(self) -> None:
        assert len({*self._waiting}) == len(self._waiting)

    def _take(self, event: Event) -> Effect:
        assert not self.closed
        match event:
            case ConnectionWanted():
                return Resolve(self._address)
            case Resolved():
                drawn = sorted(zip(event.draws, event.addresses, strict=True))
                self._waiting.extend(address for _, address in drawn)
                return self._go_on()
            case TransportFailed():
                self._reasons.append(event.reason)
                return self._go_on()
            case NotResolved():
                self._reasons.append(event.reason)
                return self._go_on()
            case TransportOpened():
                self.closed = True
                return NodeFound()
            case _:
                assert_never(event)

    def _go_on(self) -> Effect:
        if self._waiting:
            return OpenTransport(self._waiting.popleft())
        self.closed = True
        return NodeNotFound("; ".join(dict.fromkeys(self._reasons)))
