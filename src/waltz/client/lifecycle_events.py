"""The events of a client's own life, for its application: a listener gets each once, in order.

    def listen(event: LifecycleEvent) -> None:
        match event:
            case ServerDisconnected(address): ...

A listener is called on a worker's thread, one event at a time, never by code that moves data. Its
exceptions are logged and change nothing. After `close` there are no more events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from waltz.types import Address, PartitionId


@dataclass(frozen=True, slots=True)
class ServerConnected:
    """There is a connection to this server; there was none before."""

    address: Address


@dataclass(frozen=True, slots=True)
class ServerDisconnected:
    """The last connection to this server has ended."""

    address: Address


@dataclass(frozen=True, slots=True)
class ConnectionRestored:
    """A broken connection was resumed where it broke: nothing is lost, nothing is repeated."""

    address: Address


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """Another cluster answers at the known addresses: this client can do nothing more, close it."""

    expected: UUID
    found: UUID


@dataclass(frozen=True, slots=True)
class PartitionMounted:
    """The partition can be written to, and is fed."""

    partition_id: PartitionId


@dataclass(frozen=True, slots=True)
class PartitionUnmounted:
    """The partition has no usable server at the moment."""

    partition_id: PartitionId


LifecycleEvent: TypeAlias = (
    ServerConnected
    | ServerDisconnected
    | ConnectionRestored
    | ClusterChanged
    | PartitionMounted
    | PartitionUnmounted
)

LifecycleListener: TypeAlias = Callable[[LifecycleEvent], object]
