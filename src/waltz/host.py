"""The doors to the outside, as protocols only: clock, network, disk, coordinator, random, workers.

`waltz.system` implements them on the operating system, `waltz.sim` in a simulation. Nothing above
these doors can tell which of the two it runs on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from uuid import UUID

from waltz.types import Address, CertificateNames, LocalUser

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
    """A connection by TCP, or by a socket of this machine. A lost one and a finished one look the
    same: nobody knows what arrived."""

    @property
    def peer(self) -> str:
        """The other side, for log lines."""
        ...

    @property
    def certificate(self) -> CertificateNames | None:
        """The names in the peer's verified certificate; None without one."""
        ...

    @property
    def user(self) -> LocalUser | None:
        """The user on the other side of a connection that was accepted at a socket of this machine,
        as the system proves it; None for any other connection."""
        ...

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is spoken, so that nobody on the way reads along."""
        ...

    @property
    def token(self) -> str:
        """The bearer token to be shown to the other side, whose certificate was verified; empty:
        there is none to show."""
        ...

    async def read(self, wanted: int = 1) -> bytes:
        """Return what has arrived, at most `limits.READ_BYTES_MAX` bytes; `b""` once the connection
        has ended, for whatever reason. Wait for at least `wanted` bytes, for fewer are of no use to
        the caller; fewer are returned only when no more will come."""
        ...

    def hand_over(self, receive: Callable[[bytes], None]) -> None:
        """From now on call `receive` with each piece that arrives, in place of further reads, and
        once with `b""` at the end. A peer that has connected here is not read while it does not
        take what was sent to it; any other is slowed down by `pause_reading` alone."""
        ...

    def pause_reading(self) -> None:
        """Hand over nothing more, and let the peer wait, until `resume_reading`; the end of the
        connection may be handed over meanwhile. Idempotent."""
        ...

    def resume_reading(self) -> None:
        """Hand over what has arrived since `pause_reading`, and all that follows."""
        ...

    def write(self, data: bytes) -> None:
        """Queue `data`; ignored once the connection has ended. Data queued in one turn of the loop
        may be sent together in the next turn."""
        ...

    def send(self, data: bytes) -> None:
        """Send what is queued and then `data`, now; ignored once the connection has ended."""
        ...

    def flush(self) -> None:
        """Send what is queued now."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and still wait on this side."""
        ...

    def note_held(self, byte_count: int) -> None:
        """Note that `byte_count` bytes read from an accepted connection are not processed yet. The
        bytes held for all connections of a process are bounded (`limits.CONNECTIONS_BYTES_MAX`)."""
        ...

    def note_dispensable(self, is_dispensable: bool) -> None:
        """Note whether an accepted connection may be closed to make room for a new one. Of several
        dispensable connections the one that was marked first is closed."""
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
        """The address that it listens on, with the real port where port 0 was asked for."""
        ...

    async def close(self) -> None:
        """Stop accepting. Connections already accepted stay open."""
        ...


class Network(Protocol):
    async def resolve(self, address: Address) -> Sequence[Address]:
        """Return the transport addresses of the host name, at least one, in any order.

        Each call resolves the name anew. Raises ConnectionFailedError: it has no address.
        """
        ...

    async def connect(self, address: Address, *, name: str | None = None) -> Connection:
        """Open a connection. `name` is the host name that `address` was resolved from, if any: with
        TLS the peer must prove that name. Raises ConnectionFailedError."""
        ...

    async def listen(
        self, address: Address, accept: Callable[[Connection], Awaitable[None]]
    ) -> Listener:
        """Run `accept` in a task of its own for every connection; the connection is closed when
        `accept` returns. Port 0 takes a free port. Raises ConfigurationError: port in use."""
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
        """Cut or lengthen the file to `size`; release the space reserved beyond it."""
        ...

    def preallocate(self, size: int) -> None:
        """Reserve disk space for the file up to byte `size`; its size and content stay.

        Does nothing on a file system that cannot reserve. Raises OSError: not enough space.
        """
        ...

    def sync(self) -> None:
        """Return once everything written, and the file's size, is on stable storage."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Space:
    """The bytes of a file system: free for this process, and in total."""

    free_bytes: int
    total_bytes: int


class Disk(Protocol):
    """A file system. Paths are absolute or relative to the process; errors are OSError."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. With `create` the file must not exist; without, it must.
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
        """Move a file over `target` in one step, or a directory to a `target` that is not there."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. Raises FileExistsError: there is something of that name."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return once names created, renamed or removed in the directory are durable."""
        ...


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the coordinator's tree.

    `data` None means that no value was ever set, which differs from empty. `version` counts writes
    from 0, `child_version` counts children created and deleted. `is_own` says whether the node is
    ephemeral and belongs to the coordinator session that read it. `session` identifies that
    session; None: unknown.
    """

    data: bytes | None
    version: int
    child_version: int
    is_own: bool = field(default=False, compare=False)
    session: str | int | None = field(default=None, compare=False)


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

        An ephemeral node is deleted with this coordinator session. The path of a sequential one
        gets ten digits appended. Raises NodeExistsError, NoNodeError.
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
        where `seen` is None, or is gone. Level-triggered: a change before the call counts.

        The end of the session that read `seen` counts as a change: the coordinator may have been
        rebuilt meanwhile, and another node may have the same versions."""
        ...

    async def close(self) -> None:
        """End the coordinator session: its ephemeral nodes are deleted at once."""
        ...


class Workers(Protocol):
    def start(self, function: Callable[[], Callable[[], object]]) -> None:
        """Run `function`, which may wait for a disk or a database, off the event loop, and then on
        the loop what it returns. `function` may not raise."""
        ...

    async def run_blocking(self, function: Callable[[], T]) -> T:
        """Run `function` as `start` does; return its result, or raise what it raises."""
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
    """Called with each machine after each step, to check it; None outside of tests."""
