"""The values of an application's transactions: contexts, builders, transactions, locks.

Owns the application's side of one transaction. Knows nothing of connections, of retries or of when
anything is called. Source: Waltz Internals, "Application Programming Model".
"""

# ruff: noqa: B027 - an application leaves out the callbacks that it does not need

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from waltz.errors import LocalProtocolError
from waltz.limits import DATA_BYTES_MAX, LOCKS_MAX
from waltz.types import NOTHING, PartitionId, RequestId, TransactionId

LOCK_NAMES_CACHED_MAX: Final = 10_000
"""Names of locks whose hash a client remembers."""


T = TypeVar("T")

HEADER_MIN: Final = -(2**31)
HEADER_MAX: Final = 2**31 - 1


class Serializer(Protocol[T]):
    """Converts an application's transactions to bytes and back (PM-26)."""

    def serialize(self, value: T) -> bytes:
        """Return `value` as bytes; an exception ends the context."""
        ...

    def deserialize(self, data: bytes) -> T:
        """Return the value that `serialize` was given; an exception counts as the callback's."""
        ...


def _payload(data: bytes) -> bytes:
    """Return `data` without its envelope; hardly any has one, and only that begins with this."""
    if data[:1] != b"\xc1":
        return data
    from waltz.envelope import payload

    return payload(data)


class BytesSerializer:
    """Passes bytes through."""

    def serialize(self, value: bytes) -> bytes:
        return bytes(value)

    def deserialize(self, data: bytes) -> bytes:
        return data


class StringSerializer:
    """Converts text to UTF-8."""

    def serialize(self, value: str) -> bytes:
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        return _payload(data).decode()


class JsonSerializer:
    """Converts values that JSON can express, without spaces, to UTF-8."""

    def serialize(self, value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def deserialize(self, data: bytes) -> Any:
        return json.loads(_payload(data))


class MsgpackSerializer:
    """Converts values that MessagePack can express: shorter than JSON, and with bytes. Needs
    `msgpack`."""

    def __init__(self) -> None:
        """Import msgpack. Raises ImportError: it is not installed; the extra `msgpack` brings
        it."""
        import msgpack

        self._pack: Callable[[Any], bytes] = msgpack.packb
        self._unpack: Callable[[bytes], Any] = msgpack.unpackb

    def serialize(self, value: Any) -> bytes:
        return self._pack(value)

    def deserialize(self, data: bytes) -> Any:
        return self._unpack(_payload(data))


class PartitionLocalLock:
    """A lock: a name and a signed 64-bit number, valid within one partition.

    Servers see only `hash`: Java's hash of the name, XOR the two halves of the number. Every client
    must compute it alike, or mutual exclusion is silently lost (PM-25).
    """

    __slots__ = ("hash", "id", "name")

    def __init__(self, name: str, id: int) -> None:  # noqa: A002 - the documents' word
        if not isinstance(name, str):
            raise LocalProtocolError(f"lock name {name!r}; expected a string")
        self.name = name
        self.id = id
        try:
            if 0 <= id < 2**31:  # as nearly always: nothing to fold
                self.hash = _text_hash(name) ^ id
                return
            if -(2**63) <= id < 2**63:
                self.hash = _text_hash(name) ^ _signed((id ^ (id >> 32)) & 0xFFFFFFFF)
                return
        except TypeError:
            pass  # not a whole number
        raise LocalProtocolError(f"lock ID {id!r}; expected a signed 64-bit number")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionLocalLock):
            return NotImplemented
        return self.id == other.id and self.name == other.name

    def __hash__(self) -> int:
        return hash((self.name, self.id))

    def __repr__(self) -> str:
        return f"PartitionLocalLock({self.name!r}, {self.id})"


@lru_cache(LOCK_NAMES_CACHED_MAX)
def _text_hash(text: str) -> int:
    """Return Java's hash of a string: a fold over its UTF-16 code units, as a signed 32-bit
    number."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return _signed(value)


def _signed(value: int) -> int:
    """Return the signed 32-bit number with the bits of `value`, an unsigned one."""
    return value - 2**32 if value >= 2**31 else value


Locks = tuple[int, ...]
Lock: TypeAlias = PartitionLocalLock | tuple[str, int]
"""A lock, or its name and its number."""


class TransactionBuilder:
    """Takes header, data and locks from `TransactionContext.execute`."""

    __slots__ = (
        "append_locks",
        "checked",
        "locks_as_of",
        "plain_data",
        "plain_header",
        "read_locks",
        "write_locks",
    )

    # Senders read these attributes directly; `plain_data` is missing until data was set.
    plain_data: bytes
    plain_header: int

    def __init__(self) -> None:
        self.checked: dict[str, tuple[PartitionLocalLock, ...]] = {}
        """Write and read locks by the name of their kind, to name the lock of a refusal."""
        self.locks_as_of: TransactionId | None = None
        """The mark that locks are compared with; None: that of the client."""
        self.plain_header = 0
        self.write_locks: Locks = ()
        self.read_locks: Locks = ()
        self.append_locks: Locks = ()

    @property
    def header(self) -> int:
        return self.plain_header

    @header.setter
    def header(self, header: int) -> None:
        self.set_header(header)

    def set_header(self, header: int) -> None:
        """Set the number that travels with the feed, 0 if never set (PM-17).

        Raises LocalProtocolError: not a signed 32-bit number.
        """
        if not HEADER_MIN <= header <= HEADER_MAX:
            raise LocalProtocolError(
                f"transaction header {header}; expected {HEADER_MIN} to {HEADER_MAX}"
            )
        self.plain_header = header

    def set_transaction_data(self, value: T, serializer: Serializer[T]) -> None:
        """Set the data. Raises LocalProtocolError: too large; and what the serializer raises."""
        data = serializer.serialize(value)
        if not isinstance(data, bytes):
            raise LocalProtocolError(
                f"{type(serializer).__name__}.serialize returned {type(data).__name__};"
                " expected bytes"
            )
        self.set_data(data)

    def set_data(self, data: bytes) -> None:
        """Set the data as bytes. Raises LocalProtocolError: too large."""
        if type(data) is not bytes:
            data = bytes(memoryview(data))  # raises here if it could not be sent
        if len(data) > DATA_BYTES_MAX:
            raise LocalProtocolError(
                f"transaction data of {len(data)} bytes; expected at most {DATA_BYTES_MAX}"
            )
        self.plain_data = data

    @property
    def data(self) -> bytes:
        """Return the data. Raises LocalProtocolError: `execute` has set none (PM-19)."""
        check_complete(self)
        return self.plain_data

    def set_write_locks(self, locks: Iterable[Lock]) -> None:
        """Have the transaction refused if one of `locks` is newer than what this client has
        applied, and mark all of them as changed by it (PM-20). Raises LocalProtocolError, as the
        setters of other kinds do: too many locks, or not locks."""
        self.write_locks, self.checked["write"] = _checked(locks)

    def set_read_locks(self, locks: Iterable[Lock]) -> None:
        """Have the transaction refused as for write locks, but mark nothing (PM-21)."""
        self.read_locks, self.checked["read"] = _checked(locks)

    def set_append_locks(self, locks: Iterable[Lock]) -> None:
        """Mark `locks` as changed by this transaction without a check (PM-22)."""
        self.append_locks, _ = _checked(locks)

    def set_locks_as_of(self, transaction_id: int) -> None:
        """Have write and read locks compared with `transaction_id` if that is older than what this
        client has applied: the last transaction in the state that the decision was made on, which
        another process may have read. -1 is the state before the first transaction.

        A refused transaction is executed again, and refused again if it sets the same mark. Raises
        LocalProtocolError: less than -1.
        """
        self.locks_as_of = checked_mark(transaction_id)


def checked_mark(locks_as_of: int) -> TransactionId:
    """Return the mark that locks are compared with. Raises LocalProtocolError: less than -1."""
    if locks_as_of < NOTHING:
        raise LocalProtocolError(f"locks as of transaction {locks_as_of}; expected -1 or more")
    return TransactionId(locks_as_of)


def check_complete(builder: TransactionBuilder) -> None:
    """Check that data was set (PM-19). Raises LocalProtocolError if not."""
    if not hasattr(builder, "plain_data"):
        raise LocalProtocolError("no transaction data set: execute must set it or return False")


_HASH_OF: Final = attrgetter("hash")


def _checked(locks: Iterable[Lock]) -> tuple[Locks, tuple[PartitionLocalLock, ...]]:
    """Return the hashes of locks of one kind, and the locks."""
    found = tuple(locks)
    if len(found) > LOCKS_MAX:
        raise LocalProtocolError(
            f"{len(found)} locks of one kind in one transaction; expected at most {LOCKS_MAX}"
        )
    try:
        return tuple(map(_HASH_OF, found)), cast(tuple[PartitionLocalLock, ...], found)
    except AttributeError:  # some of them are pairs
        converted = tuple(map(_lock, found))
        return tuple(map(_HASH_OF, converted)), converted


def _lock(lock: Lock) -> PartitionLocalLock:
    if isinstance(lock, PartitionLocalLock):
        return lock
    if isinstance(lock, tuple) and len(lock) == 2:
        return PartitionLocalLock(*lock)
    raise LocalProtocolError(
        f"lock {lock!r}; expected a PartitionLocalLock, or a pair of its name and its number"
    )


class TransactionContext(ABC):
    """One transaction that an application wants in the log, with the callbacks for its outcome.

    It ends exactly once: by `on_completion`, `on_expiration` or `on_exception`. Callbacks run on
    worker threads, never two of one context at a time.
    """

    timeout_seconds: float | None = None
    """Seconds that the context may take from the submit to its end; None is for ever (CX-05)."""

    creation_time: int | None = None
    """The time of its submit, in milliseconds since 1970 by the client's wall clock; None before.
    For people and figures (PM-16): its time limit is measured by a monotonic clock."""
    request_id: RequestId | None = None
    """The request ID of the last attempt; earlier attempts are not in the log. None: never sent."""

    refused_lock: PartitionLocalLock | None = None
    """The lock that the last attempt was refused for; None if it was not refused for a lock, if the
    server is too old to name it, or if it was none of this context's locks."""

    executed_at: TransactionId = TransactionId(-1)
    """The client's high-water mark before the last attempt: the transaction's ID is higher, if it
    is in the log."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "on_lock_refusal" in vars(cls):  # it would never be called
            raise TypeError(
                f"{cls.__name__}.on_lock_refusal: override on_lock_failure(transaction_id); the"
                " lock is in self.refused_lock"
            )

    @abstractmethod
    def partition_id(self, partition_count: int) -> int:
        """Return the partition the transaction belongs to, from 0 to `partition_count` - 1.

        Asked once, when the context is submitted, with the number of partitions that the client
        knows then: all attempts use that answer. Partitions may be added while clients run, and
        clients learn of it at different times: for transactions that must be in one order, or that
        share a lock, the answer must not depend on `partition_count`, unless the application
        ensures that no process uses the old number any more (docs/operating/cluster.md, "Add
        partitions").
        """

    @abstractmethod
    def execute(self, builder: TransactionBuilder) -> bool:
        """Fill `builder` from the application's present state, or return False if there is nothing
        to write.

        May be called several times, each time with newer state.
        """

    def on_completion(self, result: bool) -> None:
        """Take the final verdict: True, it is in the log; False, it is not and never will be."""

    def on_application(self) -> None:
        """Take note that the transaction has been applied and the client's mark has moved past
        it."""

    def on_lock_failure(self, transaction_id: TransactionId) -> None:
        """Take note that the lock `refused_lock` was newer than this client's mark: it was last
        changed by a transaction that the server estimates as `transaction_id`.

        For information only; it may be a hash collision. The context is executed again.
        """

    def on_expiration(self) -> None:
        """Take note that the time is up and the context is given up. It is unknown whether it is in
        the log, unless it was never sent: only the feed tells."""

    def on_exception(self, error: Exception) -> None:
        """Take note that the context ends with `error`. `error.may_be_written`, of a WaltzError,
        tells whether the transaction may be in the log all the same."""


FetchData = Callable[[PartitionId, TransactionId], bytes]


class Transaction:
    """A transaction of the log, as it came through the feed; its data is fetched when asked for."""

    __slots__ = ("_data", "_fetch", "header", "request_id", "transaction_id")

    def __init__(
        self,
        request_id: RequestId,
        transaction_id: TransactionId,
        header: int,
        data: bytes | None,
        fetch: FetchData,
    ) -> None:
        self.request_id = request_id
        self.transaction_id = transaction_id
        self.header = header
        self._data = data
        self._fetch = fetch

    @property
    def partition_id(self) -> PartitionId:
        return self.request_id.partition_id

    @property
    def has_data(self) -> bool:
        """Return whether the data is here already, so that reading it does not wait."""
        return self._data is not None

    @property
    def data(self) -> bytes:
        """Return the data, fetched once if it was not sent along (PM-31); waits for a server
        through lost connections and moved partitions (PM-32).

        Raises ClientClosedError; LocalProtocolError: asked for on the event loop's own thread.
        """
        if self._data is None:
            self._data = self._fetch(self.request_id.partition_id, self.transaction_id)
        return self._data

    def get_transaction_data(self, serializer: Serializer[T]) -> T:
        """Return the data as deserialized by `serializer`."""
        return serializer.deserialize(self.data)

    def provide_data(self, data: bytes) -> None:
        """Keep data that was fetched ahead."""
        self._data = data

    def __repr__(self) -> str:
        return f"Transaction({self.request_id}, {self.transaction_id}, header={self.header})"


class PlainAppend(TransactionContext):
    """A context whose content does not depend on anything: the verb `append` submits one.

    An application that submits one itself keeps its `request_id`, and can ask `outcome` about it
    even after it has stopped waiting.
    """

    def __init__(
        self,
        partition_id: int,
        data: bytes,
        header: int = 0,
        write_locks: Sequence[Lock] = (),
        read_locks: Sequence[Lock] = (),
        append_locks: Sequence[Lock] = (),
    ) -> None:
        self._partition_id = partition_id
        self._data = data
        self._header = header
        self._write_locks = write_locks
        self._read_locks = read_locks
        self._append_locks = append_locks

    def partition_id(self, partition_count: int) -> int:
        return self._partition_id

    def execute(self, builder: TransactionBuilder) -> bool:
        builder.set_header(self._header)
        builder.set_data(self._data)
        if self._write_locks:
            builder.set_write_locks(self._write_locks)
        if self._read_locks:
            builder.set_read_locks(self._read_locks)
        if self._append_locks:
            builder.set_append_locks(self._append_locks)
        return True
