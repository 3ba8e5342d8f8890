"""Opens clients, readers, notes and replicas of a cluster, on the real host of this process.

Each function imports what it opens: a program that reads the log does not pay for importing the
client that writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from waltz.host import Coordinator, Host
from waltz.limits import READER_SECONDS_MAX
from waltz.system.own_process import own_instance, own_program
from waltz.system.real_host import real_coordinator, real_host
from waltz.system.workers import RealWorkers
from waltz.types import (
    ClusterAddress,
    CoordinatorAddress,
    ServersAddress,
    TlsSettings,
    ZooKeeperAddress,
    parse_cluster,
)

if TYPE_CHECKING:
    from waltz.attest.attested_log import AttestedLog
    from waltz.client.applying.callbacks import WaltzClientCallbacks
    from waltz.client.blocking_client import WaltzClient
    from waltz.client.client_shell import AsyncWaltzClient
    from waltz.client.notes_shell import ClusterNotes
    from waltz.connections.retry import RetryPolicy
    from waltz.operators.log_times_shell import LogTimes
    from waltz.operators.replicas_shell import ReplicaReader
    from waltz.reader.blocking_reader import LogReader
    from waltz.reader.reader_shell import AsyncLogReader

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
    `tls` None: TLS with any peer, and plain to this machine's own address. The other options are
    those of `ClientOptions`; `name` is what operators see of the client, and which of several of
    that name it is, `instance`. Raises ConfigurationError: not an address, an unknown option;
    NoNodeError: there is no cluster; CoordinatorLostError, ConnectionFailedError: no answer;
    RemoteProtocolError: the answer does not come from a server of ours.
    """
    from waltz.client.blocking_client import WaltzClient
    from waltz.client.client_options import options_from

    address = _parse(cluster)
    settings = options_from(_options_of(address) | _named(options))
    return WaltzClient(
        lambda: _real_host(address, tls),
        callbacks,
        settings,
        open_coordinator=_coordinators(tls),
    )


def open_async_client(
    cluster: str | ClusterAddress,
    callbacks: WaltzClientCallbacks,
    *,
    tls: TlsSettings | None = None,
    **options: Any,
) -> AsyncWaltzClient:
    """Return a client for asyncio, which starts when it is entered: `async with open_…`.

    Call it on the loop. Raises ConfigurationError; entering raises as `open_client`.
    """
    from waltz.client.client_options import options_from
    from waltz.client.client_shell import AsyncWaltzClient

    address = _parse(cluster)
    settings = options_from(_options_of(address) | _named(options))
    host, release_host = _real_host(address, tls)
    return AsyncWaltzClient(
        host,
        callbacks,
        settings,
        release_host=release_host,
        open_coordinator=_coordinators(tls),
    )


def open_reader(
    cluster: str | ClusterAddress,
    *,
    timeout_seconds: float = READER_SECONDS_MAX,
    root: str | None = None,
    tls: TlsSettings | None = None,
    retry_policy: RetryPolicy | None = None,
    name: str | None = None,
    instance: str | None = None,
) -> LogReader:
    """Return a reader of ranges of the log, for threads.

    `timeout_seconds` bounds how long it waits without progress; `retry_policy` None: `RetryReads`.
    `name` and `instance` as for `open_client`; operators see a reader while it follows. Raises as
    `open_client`.
    """
    from waltz.reader.blocking_reader import LogReader

    address = _parse(cluster)
    found = _options_of(address)
    return LogReader(
        lambda: _real_host(address, tls),
        timeout_seconds=timeout_seconds,
        root=root or found.get("root"),
        servers=found.get("servers", ()),
        retry_policy=retry_policy,
        **_named({"name": name, "instance": instance}),
    )


def open_async_reader(
    cluster: str | ClusterAddress,
    *,
    timeout_seconds: float = READER_SECONDS_MAX,
    root: str | None = None,
    tls: TlsSettings | None = None,
    retry_policy: RetryPolicy | None = None,
    name: str | None = None,
    instance: str | None = None,
) -> AsyncLogReader:
    """Return a reader for asyncio, which starts when it is entered. Call it on the loop."""
    from waltz.reader.reader_shell import AsyncLogReader

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
        **_named({"name": name, "instance": instance}),
    )


def open_attested(
    url: str,
    *,
    log_key: str,
    witness_keys: Sequence[str] = (),
    witnesses_min: int | None = None,
    seen: Sequence[str] = (),
) -> AttestedLog:
    """Return what is proven of the log by the trees of the archive at `url`, which `waltz attest
    run` has written, for `require_attested` of a reader.

    `log_key` and `witness_keys` are public keys as `waltz attest keygen` prints them.
    `witnesses_min`: the witnesses that must have cosigned a checkpoint; all that are named if None.
    `seen`: checkpoints of an earlier process; a log whose history was changed since is refused.
    Raises ConfigurationError: not a key, not the place of an archive; AttestationError: one of
    `seen` is not signed by the log's key.
    """
    from waltz.archive.archive_target import open_target
    from waltz.attest.attested_log import AttestedLog
    from waltz.attest.notes import PublicKey
    from waltz.attest.tree_files import TreeFiles

    target = open_target(url)
    return AttestedLog(
        lambda partition_id: TreeFiles(target, partition_id),
        PublicKey.parse(log_key),
        witness_keys=[PublicKey.parse(each) for each in witness_keys],
        witnesses_min=witnesses_min,
        seen=seen,
    )


def open_times(cluster: str | ClusterAddress, *, tls: TlsSettings | None = None) -> LogTimes:
    """Return access, for threads, to the times of many transactions, which storage nodes note.

    The coordinator knows all storage nodes: with `waltz://` servers are asked for its address at
    the first question, and it must be reachable from here. A client has `time_of` and
    `transaction_at` of its own. Raises ConfigurationError: not an address.
    """
    from waltz.operators.log_times_shell import LogTimes

    address = _parse(cluster)
    found = _options_of(address)
    return LogTimes(
        lambda: _real_host(address, tls),
        root=found.get("root"),
        servers=found.get("servers", ()),
        open_coordinator=_coordinators(tls),
    )


def open_notes(cluster: str | ClusterAddress, *, tls: TlsSettings | None = None) -> ClusterNotes:
    """Return access, for threads, to small values that the cluster stores for applications.

    The coordinator stores them: servers are asked once for its address, and it must be reachable
    from here. Raises ConfigurationError: not an address, or another cluster's coordinator is at the
    address that the servers have; UnavailableError: no server answers; and as `open_client` at the
    first use.
    """
    from waltz.client.notes_shell import ClusterNotes

    address = _coordinator(cluster, tls)
    root = _options_of(address).get("root")
    return ClusterNotes(lambda: _real_host(address, tls), root=root)


def open_replicas(
    cluster: str | ClusterAddress, *, tls: TlsSettings | None = None
) -> ReplicaReader:
    """Return a reader, for threads, of the records that each storage node holds, to compare copies.

    The coordinator knows all storage nodes: servers are asked for its address, as by `open_notes`.
    Raises NoNodeError: there is no cluster; CoordinatorLostError; as `open_notes`.
    """
    from waltz.operators.replicas_shell import ReplicaReader

    address = _coordinator(cluster, tls)
    root = _options_of(address).get("root")
    return ReplicaReader(lambda: _real_host(address, tls), root=root)


def _parse(cluster: str | ClusterAddress) -> ClusterAddress:
    """Return the address; log the entries of a list that are ignored. Raises ConfigurationError."""
    address = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    for reason in address.refused if isinstance(address, ServersAddress) else ():
        logger.warning("server_address_ignored reason=%s", reason)
    return address


def _coordinator(cluster: str | ClusterAddress, tls: TlsSettings | None) -> CoordinatorAddress:
    """Return the coordinator's address, asking servers for it. Raises as `open_notes`."""
    address = _parse(cluster)
    if not isinstance(address, ServersAddress):
        return address
    from waltz.connections.loop_thread import LoopThread
    from waltz.operators.questions_shell import find_coordinator

    settings = tls or TlsSettings()
    thread = LoopThread("waltz-coordinator")
    try:
        asking = find_coordinator(real_host(None, settings), address, _coordinators(tls))
        return thread.call(asking)
    finally:
        thread.stop()


def _coordinators(tls: TlsSettings | None) -> Callable[[CoordinatorAddress], Coordinator]:
    """Return what opens a coordinator that servers have named."""
    return lambda told: real_coordinator(told, tls or TlsSettings())


def _options_of(address: ClusterAddress) -> dict[str, Any]:
    """Return the options that an address implies."""
    if isinstance(address, ServersAddress):
        return {"servers": address.servers}
    if isinstance(address, ZooKeeperAddress) and address.root:
        return {"root": address.root}
    return {}


def _named(options: dict[str, Any]) -> dict[str, Any]:
    """Return `options` with the words that operators see of this process where they have none. The
    name of a consumer is one that somebody has chosen, never a default."""
    found = dict(options)
    if not found.get("name") and not found.get("is_consumer"):
        found["name"] = own_program()
    if not found.get("instance"):
        found["instance"] = own_instance()
    if not found.get("program"):
        found["program"] = own_program()
    return found


def _real_host(address: ClusterAddress, tls: TlsSettings | None) -> tuple[Host, Callable[[], None]]:
    """Return the doors of this process and the function that closes them."""
    coordinator = None if isinstance(address, ServersAddress) else address
    # Callbacks run on these threads, and one that never ends must not keep the process alive.
    workers = RealWorkers(daemon=True)
    return replace(real_host(coordinator, tls or TlsSettings()), workers=workers), workers.close
