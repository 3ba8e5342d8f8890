"""Waltz: a distributed, replicated write-ahead log for transactions, with optimistic locking.

    with waltz.open_client("localhost:2181", callbacks) as client:
        client.submit(context)

    with waltz.open_reader("localhost:2181") as log:
        for columns in log.read(0, 0, log.high_water_mark(0) + 1): ...

`cluster` is how the cluster is found. By some of its servers: `waltz://host:port,host:port`; one
that answers is enough, the others are learnt from it, and no coordinator is needed. Or by its
coordinator: `host:port` of the one that `waltz up` runs, `zookeeper://host:port,host:port/root`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from waltz.client.blocking import WaltzClient
from waltz.client.bulk import RowColumns, lock_hashes
from waltz.client.callbacks import NoCallbacks, WaltzClientCallbacks
from waltz.client.lifecycle_events import (
    ClusterChanged,
    ConnectionRestored,
    LifecycleEvent,
    PartitionMounted,
    PartitionUnmounted,
    ServerConnected,
    ServerDisconnected,
)
from waltz.client.notes.shell import ClusterNotes
from waltz.client.options import options_from
from waltz.client.partitions.shell import BlockedPartition
from waltz.client.questions.shell import ServerReport
from waltz.client.reader.blocking import LogReader
from waltz.client.reader.columns import BlockData, TransactionColumns
from waltz.client.reader.shell import AsyncLogReader, WantsData
from waltz.client.replicas.shell import Replica, ReplicaMarks, ReplicaReader
from waltz.client.retry import NoRetries, Operation, RetryAll, RetryPolicy, RetryReads
from waltz.client.shell import AsyncWaltzClient
from waltz.client.sql_callbacks import SqlCallbacks
from waltz.client.transaction import (
    BytesSerializer,
    JsonSerializer,
    MsgpackSerializer,
    PartitionLocalLock,
    PlainAppend,
    Serializer,
    StringSerializer,
    Transaction,
    TransactionBuilder,
    TransactionContext,
)
from waltz.client.transactions import Transactions
from waltz.errors import (
    AlreadyClosedError,
    ClientAheadError,
    ClientClosedError,
    ClusterChangedError,
    ConfigurationError,
    ConnectionFailedError,
    ConnectionLostError,
    CoordinatorLostError,
    CorruptionError,
    LocalProtocolError,
    NotFoundError,
    OperationTimeoutError,
    PartitionInactiveError,
    PartitionNotReadyError,
    PostponedError,
    RemoteProtocolError,
    SubmitCancelledError,
    UnavailableError,
    WaltzError,
)
from waltz.host import Host
from waltz.limits import READER_SECONDS_MAX
from waltz.types import (
    NOTHING,
    Address,
    ClientId,
    ClusterAddress,
    PartitionId,
    RequestId,
    ServersAddress,
    TlsSettings,
    TransactionId,
    ZooKeeperAccess,
    ZooKeeperAcl,
    ZooKeeperAddress,
    parse_cluster,
)

__all__ = [
    "NOTHING",
    "Address",
    "AlreadyClosedError",
    "AsyncLogReader",
    "AsyncWaltzClient",
    "BlockData",
    "BlockedPartition",
    "BytesSerializer",
    "ClientAheadError",
    "ClientClosedError",
    "ClientId",
    "ClusterChanged",
    "ClusterChangedError",
    "ClusterNotes",
    "ConfigurationError",
    "ConnectionFailedError",
    "ConnectionLostError",
    "ConnectionRestored",
    "CoordinatorLostError",
    "CorruptionError",
    "JsonSerializer",
    "LifecycleEvent",
    "LocalProtocolError",
    "LogReader",
    "MsgpackSerializer",
    "NoCallbacks",
    "NoRetries",
    "NotFoundError",
    "Operation",
    "OperationTimeoutError",
    "PartitionId",
    "PartitionInactiveError",
    "PartitionLocalLock",
    "PartitionMounted",
    "PartitionNotReadyError",
    "PartitionUnmounted",
    "PlainAppend",
    "PostponedError",
    "RemoteProtocolError",
    "Replica",
    "ReplicaMarks",
    "ReplicaReader",
    "RequestId",
    "RetryAll",
    "RetryPolicy",
    "RetryReads",
    "RowColumns",
    "Serializer",
    "ServerConnected",
    "ServerDisconnected",
    "ServerReport",
    "SqlCallbacks",
    "StringSerializer",
    "SubmitCancelledError",
    "TlsSettings",
    "Transaction",
    "TransactionBuilder",
    "TransactionColumns",
    "TransactionContext",
    "TransactionId",
    "Transactions",
    "UnavailableError",
    "WaltzClient",
    "WaltzClientCallbacks",
    "WaltzError",
    "WantsData",
    "ZooKeeperAccess",
    "ZooKeeperAcl",
    "ZooKeeperAddress",
    "lock_hashes",
    "open_async_client",
    "open_async_reader",
    "open_client",
    "open_notes",
    "open_reader",
    "open_replicas",
]

logger = logging.getLogger(__name__)


def open_client(
    cluster: str | ClusterAddress,
    callbacks: WaltzClientCallbacks,
    *,
    tls: TlsSettings | None = None,
    **options: Any,
) -> WaltzClient:
    """Return a client for threads, which follows the log from now on until it is closed.

    `cluster` is an address as text, or a `ZooKeeperAddress` with its `access`, which has no text.
    `tls` None: TLS with whoever answers, and plain to this machine's own address. The other options
    are those of `ClientOptions`. Raises ConfigurationError: not an address, an unknown
    option; NoNodeError: there is no cluster; CoordinatorLostError, ConnectionFailedError: nobody
    answers; RemoteProtocolError: somebody answers who is no server of ours.
    """
    address = _parse(cluster)
    settings = options_from(_options_of(address) | options)
    return WaltzClient(lambda: _real_host(address, tls), callbacks, settings)


def open_async_client(
    cluster: str | ClusterAddress,
    callbacks: WaltzClientCallbacks,
    *,
    tls: TlsSettings | None = None,
    **options: Any,
) -> AsyncWaltzClient:
    """Return a client for asyncio, which starts when it is entered: `async with open_…`.

    To be called on the loop. Raises ConfigurationError; entering raises as `open_client`.
    """
    address = _parse(cluster)
    settings = options_from(_options_of(address) | options)
    host, release_host = _real_host(address, tls)
    return AsyncWaltzClient(host, callbacks, settings, release_host=release_host)


def open_reader(
    cluster: str | ClusterAddress,
    *,
    timeout_seconds: float = READER_SECONDS_MAX,
    root: str | None = None,
    tls: TlsSettings | None = None,
    retry_policy: RetryPolicy | None = None,
) -> LogReader:
    """Return a reader of ranges of the log, for threads.

    `timeout_seconds` bounds how long it waits without progress; `retry_policy` None: `RetryReads`.
    Raises as `open_client`.
    """
    address = _parse(cluster)
    found = _options_of(address)
    return LogReader(
        lambda: _real_host(address, tls),
        timeout_seconds=timeout_seconds,
        root=root or found.get("root"),
        servers=found.get("servers", ()),
        retry_policy=retry_policy,
    )


def open_async_reader(
    cluster: str | ClusterAddress,
    *,
    timeout_seconds: float = READER_SECONDS_MAX,
    root: str | None = None,
    tls: TlsSettings | None = None,
    retry_policy: RetryPolicy | None = None,
) -> AsyncLogReader:
    """Return a reader for asyncio, which starts when it is entered. To be called on the loop."""
    address = _parse(cluster)
    found = _options_of(address)
    host, release_host = _real_host(address, tls)
    return AsyncLogReader(
        host,
        timeout_seconds=timeout_seconds,
        root=root or found.get("root"),
        servers=found.get("servers", ()),
        retry_policy=retry_policy,
        release_host=release_host,
    )


def open_notes(cluster: str | ClusterAddress, *, tls: TlsSettings | None = None) -> ClusterNotes:
    """Return small values that the cluster keeps for applications, for threads.

    Raises ConfigurationError: not the coordinator's address, and servers keep none; and as
    `open_client` at the first use.
    """
    address = _coordinator(cluster, "notes are kept")
    root = _options_of(address).get("root")
    return ClusterNotes(lambda: _real_host(address, tls), root=root)


def open_replicas(
    cluster: str | ClusterAddress, *, tls: TlsSettings | None = None
) -> ReplicaReader:
    """Return a reader of what each storage node holds, for threads: to compare their copies.

    Raises ConfigurationError: not the coordinator's address, who alone knows them all; NoNodeError:
    there is no cluster; CoordinatorLostError.
    """
    address = _coordinator(cluster, "storage nodes are known")
    root = _options_of(address).get("root")
    return ReplicaReader(lambda: _real_host(address, tls), root=root)


def _parse(cluster: str | ClusterAddress) -> ClusterAddress:
    """Raises ConfigurationError; what is left out of a list is logged."""
    address = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    for reason in address.refused if isinstance(address, ServersAddress) else ():
        logger.warning("server_address_ignored reason=%s", reason)
    return address


def _coordinator(cluster: str | ClusterAddress, what: str) -> ClusterAddress:
    """Raises ConfigurationError: the address names servers."""
    address = _parse(cluster)
    if isinstance(address, ServersAddress):
        raise ConfigurationError(
            f"{cluster} names servers; {what} by the coordinator: expected its address"
        )
    return address


def _options_of(address: ClusterAddress) -> dict[str, Any]:
    """The options that an address stands for."""
    if isinstance(address, ServersAddress):
        return {"servers": address.servers}
    if isinstance(address, ZooKeeperAddress) and address.root:
        return {"root": address.root}
    return {}


def _real_host(address: ClusterAddress, tls: TlsSettings | None) -> tuple[Host, Callable[[], None]]:
    """The doors of this process; imported late, so that values alone do not need them."""
    from waltz.system.host import real_host
    from waltz.system.workers import RealWorkers

    coordinator = None if isinstance(address, ServersAddress) else address
    # Callbacks run on them, and one that never ends is not to keep the process.
    workers = RealWorkers(daemon=True)
    return replace(real_host(coordinator, tls or TlsSettings()), workers=workers), workers.close
