"""The doors to the outside, as protocols only: clock, network, disk, coordinator, random, workers.

`waltz.system` implements them on the operating system, `waltz.sim` in a simulation. Nothing above
these doors can tell which of the two it runs on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID

from waltz.types import Address

T = TypeVar("T")


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a clock that never goes back; its zero means nothing."""
        ...

    def wall_milliseconds(self) -> int:
        """Milliseconds since 1970 (UTC), for people and file headers; never for decisions."""
        ...


class Random(Protocol):
    def uniform(self, low: float, high: float) -> float: ...

    def uuid(self) -> UUID:
        """A random UUID (version 4)."""
        ...


class Connection(Protocol):
    """A TCP connection. A lost one and a finished one look the same: nobody knows what arrived."""

    @property
    def peer(self) -> str:
        """The other side, for log lines."""
        ...

    @property
    def identity(self) -> str:
        """Whom the peer's verified certificate names; empty without one."""
        ...

    async def read(self, wanted: int = 1) -> bytes:
        """Return what has arrived, one byte to `limits.READ_BYTES_MAX`; `b""` once the connection
        has ended, for whatever reason. With fewer bytes than `wanted` nothing could be begun: they
        are returned when no more come."""
        ...

    def hand_over(self, receive: Callable[[bytes], None]) -> None:
        """Call `receive` with what arrives, whenever it does, in place of all further reads, and at
        the end once with `b""`. Nothing holds the peer up: only for one who sends no more than it
        was asked for."""
        ...

    def write(self, data: bytes) -> None:
        """Queue `data`; ignored once the connection has ended. What is queued in one turn of the
        loop may leave together, in the next one."""
        ...

    def flush(self) -> None:
        """Let what is queued leave now."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """How much of what was written still waits on this side."""
        ...

    def note_held(self, byte_count: int) -> None:
        """So much of what was read from an accepted connection is not worked off yet. What all of
        a process hold is bounded (`limits.CONNECTIONS_BYTES_MAX`)."""
        ...

    def note_dispensable(self, is_dispensable: bool) -> None:
        """Whether an accepted connection may be ended for another one that would find no room. Of
        several the one goes that was said to be so longest ago."""
        ...

    async def drain(self) -> None:
        """Return once what waits to be sent is below the low mark, or the connection has ended."""
        ...

    @property
    def trouble(self) -> str:
        """Why this side has given the connection up, with the remedy; empty unless it has."""
        ...

    def close(self) -> None:
        """End the connection; queued bytes are sent if the other side takes them. Idempotent."""
        ...


class Listener(Protocol):
    @property
    def address(self) -> Address:
        """Where it listens; the real port where port 0 was asked for."""
        ...

    async def close(self) -> None:
        """Stop accepting. Connections already accepted go on."""
        ...


class Network(Protocol):
    async def resolve(self, address: Address) -> Sequence[Address]:
        """Return the transport addresses behind the host name now, at least one, in any order.

        Nothing is kept from call to call. Raises ConnectionFailedError: there are none.
        """
        ...

    async def connect(self, address: Address, *, name: str | None = None) -> Connection:
        """Open a connection. `name` is that of the host, if the address came from resolving one:
        with TLS the peer must prove to be it. Raises ConnectionFailedError."""
        ...

    async def listen(
        self, address: Address, accept: Callable[[Connection], Awaitable[None]]
    ) -> Listener:
        """Run `accept` in a task of its own for every connection; the connection is closed when it
        returns. Port 0 takes a free one. Raises ConfigurationError: port in use."""
        ...


class File(Protocol):
    """An open file. Errors are OSError, as the operating system gives them."""

    def size(self) -> int: ...

    def read_at(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset`, fewer only at the end of the file."""
        ...

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data`; a short write is finished or raises."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or lengthen the file to `size`; what is reserved beyond it is given back."""
        ...

    def preallocate(self, size: int) -> None:
        """Reserve disk space for the file up to byte `size`; its size and content stay.

        Does nothing where the file system cannot. Raises OSError: there is no such space.
        """
        ...

    def sync(self) -> None:
        """Return once all that was written, and the size, is on stable storage."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Space:
    """Room on the file system of a path, in bytes: for this process, and in all."""

    free_bytes: int
    total_bytes: int


class Disk(Protocol):
    """A file system. Paths are absolute or relative to the process; errors are OSError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. With `create` the file must not exist, without it it must.
        Raises FileNotFoundError, FileExistsError."""
        ...

    def open_to_read(self, path: str) -> File:
        """Open for reading only; every change of the file raises. Raises FileNotFoundError."""
        ...

    def space(self, path: str) -> Space:
        """Return the room on the file system that holds `path`."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """Take the exclusive lock of the existing file at `path`, held until the returned function
        is called or the process ends. Raises DirectoryInUseError."""
        ...

    def exists(self, path: str) -> bool: ...

    def list_directory(self, path: str) -> Sequence[str]:
        """Names in the directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create the directory; it must not exist, its parent must."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move a file over `target` in one step."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return once names created, renamed or removed in the directory are durable."""
        ...


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the coordinator's tree.

    `data` None means that no value was ever set, which differs from empty. `version` counts writes
    from 0, `child_version` counts children created and deleted. `is_own` is whether it is ephemeral
    and goes with the coordinator session that has read it.
    """

    data: bytes | None
    version: int
    child_version: int
    is_own: bool = field(default=False, compare=False)


ANY_VERSION = -1


class Coordinator(Protocol):
    """A small tree of versioned nodes, as ZooKeeper has it.

    Every call may raise CoordinatorLostError, which says nothing about whether it took effect.
    """

    async def read(self, path: str) -> Node:
        """Raises NoNodeError."""
        ...

    async def children(self, path: str) -> Sequence[str]:
        """Names of the children, sorted. Raises NoNodeError."""
        ...

    async def create(
        self, path: str, data: bytes | None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node and return its path; its parent must exist.

        An ephemeral node goes with this coordinator session. A sequential one gets ten digits
        appended. Raises NodeExistsError, NoNodeError.
        """
        ...

    async def write(self, path: str, data: bytes, *, version: int) -> int:
        """Replace the data if the node is at `version` and return the new version.

        Raises NoNodeError, VersionConflictError.
        """
        ...

    async def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        """Raises NoNodeError, VersionConflictError."""
        ...

    async def changed(self, path: str, seen: Node | None) -> None:
        """Return as soon as the node differs from `seen` in version or child version, or exists
        where `seen` is None, or is gone. Level-triggered: a change before the call counts."""
        ...

    async def close(self) -> None:
        """End the coordinator session: its ephemeral nodes go at once."""
        ...


class Workers(Protocol):
    async def run_blocking(self, function: Callable[[], T]) -> T:
        """Run `function`, which may wait for a disk or a database, off the event loop."""
        ...


class Inspectable(Protocol):
    def check_invariants(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Host:
    """All doors of one process."""

    clock: Clock
    network: Network
    disk: Disk
    random: Random
    workers: Workers
    coordinator: Coordinator
    inspect: Callable[[Inspectable], None] | None = None
    """Looks at every machine after every step and leaves it as it is; None but under test."""
