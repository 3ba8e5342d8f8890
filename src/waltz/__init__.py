"""Waltz: a distributed, replicated write-ahead log for transactions, with optimistic locking.

    with waltz.open_client("localhost:2181", callbacks) as client:
        client.submit(context)

    with waltz.open_reader("localhost:2181") as log:
        for columns in log.read(0, 0, log.high_water_mark(0) + 1): ...

`cluster` is where the coordinator is: `host:port` of the one that `waltz up` runs, or
`zookeeper://host:port,host:port/root`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waltz.client.blocking import LogReader, WaltzClient
from waltz.client.callbacks import NoCallbacks, SqlCallbacks, WaltzClientCallbacks
from waltz.client.options import options_from
from waltz.client.reader.columns import BlockData, TransactionColumns
from waltz.client.reader.shell import AsyncLogReader
from waltz.client.shell import AsyncWaltzClient
from waltz.client.transaction import (
    BytesSerializer,
    JsonSerializer,
    PartitionLocalLock,
    Serializer,
    StringSerializer,
    Transaction,
    TransactionBuilder,
    TransactionContext,
)
from waltz.errors import (
    ClientAheadError,
    ClientClosedError,
    ConfigurationError,
    CoordinatorLostError,
    CorruptionError,
    LocalProtocolError,
    NotFoundError,
    OperationTimeoutError,
    PartitionInactiveError,
    PartitionNotReadyError,
    PostponedError,
    RemoteProtocolError,
    UnavailableError,
    WaltzError,
)
from waltz.host import Host
from waltz.limits import READER_SECONDS_MAX
from waltz.types import (
    NOTHING,
    ClientId,
    CoordinatorAddress,
    PartitionId,
    RequestId,
    TlsSettings,
    TransactionId,
    ZooKeeperAddress,
    parse_coordinator,
)

__all__ = [
    "NOTHING",
    "AsyncLogReader",
    "AsyncWaltzClient",
    "BlockData",
    "BytesSerializer",
    "ClientAheadError",
    "ClientClosedError",
    "ClientId",
    "ConfigurationError",
    "CoordinatorLostError",
    "CorruptionError",
    "JsonSerializer",
    "LocalProtocolError",
    "LogReader",
    "NoCallbacks",
    "NotFoundError",
    "OperationTimeoutError",
    "PartitionId",
    "PartitionInactiveError",
    "PartitionLocalLock",
    "PartitionNotReadyError",
    "PostponedError",
    "RemoteProtocolError",
    "RequestId",
    "Serializer",
    "SqlCallbacks",
    "StringSerializer",
    "TlsSettings",
    "Transaction",
    "TransactionBuilder",
    "TransactionColumns",
    "TransactionContext",
    "TransactionId",
    "UnavailableError",
    "WaltzClient",
    "WaltzClientCallbacks",
    "WaltzError",
    "open_async_client",
    "open_async_reader",
    "open_client",
    "open_reader",
]


def open_client(
    cluster: str,
    callbacks: WaltzClientCallbacks,
    *,
    tls: TlsSettings | None = None,
    **options: Any,
) -> WaltzClient:
    """Return a client for threads, which follows the log from now on until it is closed.

    `tls` None: TLS with whoever answers, and plain to this machine's own address. The other options
    are those of `ClientOptions`. Raises ConfigurationError: not an address, an unknown
    option; NoNodeError: there is no cluster; CoordinatorLostError: nobody answers.
    """
    address = parse_coordinator(cluster)
    settings = options_from(_root_of(address) | options)
    return WaltzClient(lambda: _real_host(address, tls), callbacks, settings)


def open_async_client(
    cluster: str,
    callbacks: WaltzClientCallbacks,
    *,
    tls: TlsSettings | None = None,
    **options: Any,
) -> AsyncWaltzClient:
    """Return a client for asyncio, which starts when it is entered: `async with open_…`.

    To be called on the loop. Raises ConfigurationError; entering raises as `open_client`.
    """
    address = parse_coordinator(cluster)
    settings = options_from(_root_of(address) | options)
    host, release_host = _real_host(address, tls)
    return AsyncWaltzClient(host, callbacks, settings, release_host=release_host)


def open_reader(
    cluster: str,
    *,
    timeout_seconds: float = READER_SECONDS_MAX,
    root: str | None = None,
    tls: TlsSettings | None = None,
) -> LogReader:
    """Return a reader of ranges of the log, for threads.

    `timeout_seconds` bounds how long it waits without progress. Raises as `open_client`.
    """
    address = parse_coordinator(cluster)
    root = root or _root_of(address).get("root")
    return LogReader(lambda: _real_host(address, tls), timeout_seconds=timeout_seconds, root=root)


def open_async_reader(
    cluster: str,
    *,
    timeout_seconds: float = READER_SECONDS_MAX,
    root: str | None = None,
    tls: TlsSettings | None = None,
) -> AsyncLogReader:
    """Return a reader for asyncio, which starts when it is entered. To be called on the loop."""
    address = parse_coordinator(cluster)
    host, release_host = _real_host(address, tls)
    return AsyncLogReader(
        host,
        timeout_seconds=timeout_seconds,
        root=root or _root_of(address).get("root"),
        release_host=release_host,
    )


def _root_of(coordinator: CoordinatorAddress) -> dict[str, Any]:
    """The option `root`, if the address has one."""
    if isinstance(coordinator, ZooKeeperAddress) and coordinator.root:
        return {"root": coordinator.root}
    return {}


def _real_host(
    coordinator: CoordinatorAddress, tls: TlsSettings | None
) -> tuple[Host, Callable[[], None]]:
    """The doors of this process; imported late, so that values alone do not need them."""
    from waltz.system.host import real_host
    from waltz.system.workers import RealWorkers

    host = real_host(coordinator, tls or TlsSettings())
    workers = host.workers
    assert isinstance(workers, RealWorkers)
    return host, workers.close
