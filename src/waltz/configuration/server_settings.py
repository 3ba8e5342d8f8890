"""The configuration of a server: its keys, and their meaning together.

Names of Java Waltz are valid here and mean the same; the others are ours. Keys that all processes
share are as for a storage node. Source: Waltz Server, "Configuration".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from waltz.configuration.access_settings import (
    AUDIT_KEYS,
    BREAK_GLASS,
    LOCAL_SOCKETS,
    POLICY,
    POLICY_DEMANDED,
    PRINCIPAL_FROM,
    TOKENS,
)
from waltz.configuration.coordinator_settings import (
    COORDINATOR_ADDRESS,
    ZOOKEEPER_ACCESS_KEYS,
    ZOOKEEPER_KEYS,
    warn_of_plain_zookeeper,
    weigh_with_coordinator,
)
from waltz.configuration.http_settings import HTTP_ACCESS_KEYS, http_faults
from waltz.configuration.keys import (
    Key,
    ValueKind,
    address,
    number,
    port,
    text,
    whole_number,
)
from waltz.configuration.listening import (
    bind_key,
    bound_address,
    bound_host,
    http_keys,
    is_narrowed,
    narrowed_faults,
    told_address,
)
from waltz.configuration.settings import Given, Settings, different, raise_faults
from waltz.configuration.storage_settings import STORAGE_KEYS
from waltz.configuration.tls_settings import tls_faults, tls_keys, tls_settings
from waltz.limits import (
    CHECKPOINT_TRANSACTIONS,
    CONNECTION_RESTORE_SECONDS,
    FEED_CACHE_BYTES,
    FEED_FETCH_MIN,
    FEED_RUN_RECORDS_MAX,
    HANDSHAKE_SECONDS_LIMIT,
    HANDSHAKE_SECONDS_MAX,
    IDLE_SECONDS_MAX,
    LOCK_TABLE_SLOTS,
    SHUTDOWN_SECONDS_LIMIT,
    SHUTDOWN_SECONDS_MAX,
)
from waltz.types import Address, PartitionId, TlsSettings

LOGICAL_SECONDS_LIMIT: Final = 3600.0
"""The most that idleTimeout and connectionRestoreTimeout may be; a value meant as milliseconds is
above it."""


ONE_CACHE: Final = (
    "headers and bodies are kept together, in one cache of server.feedCacheSize bytes"
)
NO_THRESHOLD: Final = (
    f"a feed counts as near the head while it is owed at most {FEED_RUN_RECORDS_MAX} transactions"
)
OWN_BATCHES: Final = "batches to the replicas are bounded in bytes, not in records"
OWN_PAUSES: Final = (
    "pauses grow from 0.1 s to 20 s between store sessions, as the original's do by default, and"
    " to 1 s between attempts to reach a storage node"
)
NO_REGION: Final = "the original ignores this key, too"

BIND_ADDRESS: Final = bind_key("server", "the clients' port")
PORT: Final = Key(
    name="server.port",
    kind=port(),
    required=True,
    option="--address",
    description="Port to which clients connect.",
)
ADVERTISED_ADDRESS: Final = Key(
    name="server.advertisedAddress",
    kind=address(),
    default_text="server.port at server.bindAddress, or at the machine's name where that is all"
    " interfaces",
    option="--advertised",
    description="Address that clients are told to connect to. It differs from server.bindAddress"
    " where ports are mapped, as in containers.",
)


def _partition_ids() -> ValueKind[tuple[PartitionId, ...]]:
    def convert(value: object) -> tuple[PartitionId, ...]:
        found = value if isinstance(value, list) else [value]
        if isinstance(value, str):
            found = [part.strip() for part in value.split(",")]
        numbers = []
        for each in found:
            if isinstance(each, bool) or not isinstance(each, int | str) or int(each) < 0:
                raise ValueError
            numbers.append(PartitionId(int(each)))
        return tuple(numbers)

    def show(value: tuple[PartitionId, ...]) -> str:
        return f"[{', '.join(map(str, value))}]"

    return ValueKind("partition numbers, as a list", convert, show)


PREFERRED_PARTITIONS: Final = Key(
    name="server.preferredPartitions",
    kind=_partition_ids(),
    default_text="none",
    description="Partitions that this server prefers. `waltz admin server` changes them while the"
    " server runs; the coordinator keeps that change, which then overrides this key.",
)
LOCK_TABLE_SIZE: Final = Key(
    name="server.optimisticLockTableSize",
    kind=whole_number(1, 1 << 26, "slots"),
    default=LOCK_TABLE_SLOTS,
    description="Initial slots of each partition's lock table, 32 bytes per slot. The table grows"
    " with the number of undecided locks, up to about a million slots; the more"
    " slots, the fewer appends are refused because of a hash collision.",
)
FEED_CACHE_SIZE: Final = Key(
    name="server.feedCacheSize",
    kind=whole_number(1, 1 << 40, "bytes"),
    default=FEED_CACHE_BYTES,
    description="Memory for recent transactions, headers and data of all partitions together.",
)
MIN_FETCH_SIZE: Final = Key(
    name="server.minFetchSize",
    kind=whole_number(1, 1_000_000, "transactions"),
    default=FEED_FETCH_MIN,
    description="Minimum number of transactions that the server grants per feed request before"
    " the client has to ask again.",
)
CHECKPOINT_INTERVAL: Final = Key(
    name="storage.checkpointInterval",
    kind=whole_number(1, 1 << 40, "transactions"),
    default=CHECKPOINT_TRANSACTIONS,
    description="Number of transactions after which a partition begins a new store session.",
)
RESTORE_TIMEOUT: Final = Key(
    name="server.connectionRestoreTimeout",
    kind=number(0, LOGICAL_SECONDS_LIMIT, "seconds"),
    default=CONNECTION_RESTORE_SECONDS,
    description="Time within which a client can resume a broken connection, from version 5 of the"
    " client protocol on. 0: clients cannot resume.",
)
IDLE_TIMEOUT: Final = Key(
    name="server.idleTimeout",
    kind=number(0, LOGICAL_SECONDS_LIMIT, "seconds"),
    default=IDLE_SECONDS_MAX,
    description="Time after which the server ends the connection of a silent client, from version"
    " 5 of the client protocol on; clients send three heartbeats in that time. 0: the"
    " server ends none.",
)
HANDSHAKE_TIMEOUT: Final = Key(
    name="server.handshakeTimeout",
    kind=number(0.1, HANDSHAKE_SECONDS_LIMIT, "seconds"),
    default=HANDSHAKE_SECONDS_MAX,
    description="Time within which a client that has connected must have completed TLS, Hello and"
    " handshake. A Java process that has just started is slow to do so.",
)
SHUTDOWN_TIMEOUT: Final = Key(
    name="server.shutdownTimeout",
    kind=number(0.1, SHUTDOWN_SECONDS_LIMIT, "seconds"),
    default=SHUTDOWN_SECONDS_MAX,
    description="Maximum duration of a stop. After it the process names what is stuck and ends"
    " with status 1; other servers take its partitions over nevertheless.",
)
HTTP_PORT, HTTP_BIND_ADDRESS = http_keys("server")
COORDINATOR: Final = replace(
    COORDINATOR_ADDRESS,
    description=f"{COORDINATOR_ADDRESS.description} The server is a member of the cluster while"
    " it has a session there.",
)

TLS: Final = tls_keys("server.ssl")
"""TLS keys for the clients' port and, unless `STORAGE_TLS` is set, for connections to storage nodes
and an embedded coordinator."""

STORAGE_TLS: Final = tls_keys("server.storage.ssl")
"""TLS keys for connections to storage nodes and an embedded coordinator whose CA is not that of the
clients: if one is set, all of these count there and none of `TLS`."""


def _unused(name: str, kind: ValueKind[Any], reason: str, description: str) -> Key[Any]:
    return Key(name=name, kind=kind, unused=reason, description=description)


def _as_of_storage(family: str) -> list[Key[Any]]:
    """Return the keys `storage.<family>.*` under their names for a server."""
    keys = [key for key in STORAGE_KEYS if key.name.startswith(f"storage.{family}.")]
    return [
        replace(
            key,
            name=key.name.replace("storage.", "server.", 1),
            description=key.description.replace("The node's", "The server's"),
            unused=key.unused.replace("storage.", "server."),
        )
        for key in keys
    ]


SERVER_KEYS: Final[tuple[Key[Any], ...]] = (
    COORDINATOR,
    *ZOOKEEPER_KEYS,
    *ZOOKEEPER_ACCESS_KEYS,
    PORT,
    BIND_ADDRESS,
    ADVERTISED_ADDRESS,
    HTTP_PORT,
    HTTP_BIND_ADDRESS,
    *HTTP_ACCESS_KEYS,
    PREFERRED_PARTITIONS,
    LOCK_TABLE_SIZE,
    FEED_CACHE_SIZE,
    MIN_FETCH_SIZE,
    CHECKPOINT_INTERVAL,
    RESTORE_TIMEOUT,
    IDLE_TIMEOUT,
    HANDSHAKE_TIMEOUT,
    SHUTDOWN_TIMEOUT,
    PRINCIPAL_FROM,
    POLICY,
    POLICY_DEMANDED,
    BREAK_GLASS,
    TOKENS,
    LOCAL_SOCKETS,
    *AUDIT_KEYS,
    *TLS.all,
    *(replace(key, option="") for key in STORAGE_TLS.all if not key.unused),
    _unused("server.realtimeThreshold", whole_number(1, 1 << 31), NO_THRESHOLD, "Lag in IDs."),
    _unused("server.transactionDataCacheSize", whole_number(0, 1 << 40), ONE_CACHE, "Bytes."),
    _unused("server.transactionDataCacheAllocation", text(), ONE_CACHE, "heap or direct."),
    _unused("storage.maxBatchSize", whole_number(1, 1 << 31), OWN_BATCHES, "Records."),
    _unused("storage.initialRetryInterval", whole_number(1, 1 << 31), OWN_PAUSES, "ms."),
    _unused("storage.maxRetryInterval", whole_number(1, 1 << 31), OWN_PAUSES, "ms."),
    _unused("server.region", text(), NO_REGION, "Region in which the server runs."),
    *_as_of_storage("graphite"),
)


def server_settings(given: Mapping[str, Given]) -> Settings:
    """Return the settings of a server. Raises ConfigurationError with every fault."""
    settings, faults = weigh_with_coordinator(SERVER_KEYS, given)
    faults += different(settings, (PORT, HTTP_PORT))
    faults += tls_faults(settings, TLS, listens=True)
    faults += narrowed_faults(settings, BIND_ADDRESS, ADVERTISED_ADDRESS, TLS)
    faults += tls_faults(settings, STORAGE_TLS, listens=False)
    faults += http_faults(settings, http_address(settings))
    raise_faults(faults)
    warn_of_plain_zookeeper(settings, tls_settings(settings, TLS, listens=True))
    return settings


def client_tls(settings: Settings) -> TlsSettings:
    """Return the TLS settings of the clients' port; no file is read."""
    found = tls_settings(settings, TLS, listens=True)
    return replace(found, takes_tokens=settings.is_set(TOKENS))


def storage_tls(settings: Settings) -> TlsSettings | None:
    """Return the TLS settings for storage nodes and an embedded coordinator; None: those for
    clients."""
    if not any(settings.is_set(key) for key in STORAGE_TLS.all):
        return None
    return tls_settings(settings, STORAGE_TLS, listens=False)


def is_on_loopback_unasked(settings: Settings) -> bool:
    """Whether the server listens on loopback only because no address was set."""
    return is_narrowed(settings, BIND_ADDRESS, TLS)


def client_address(settings: Settings) -> Address:
    return Address(bound_host(settings, BIND_ADDRESS, TLS), settings[PORT])


def advertised_address(settings: Settings, machine_name: str) -> Address:
    return told_address(settings, ADVERTISED_ADDRESS, client_address(settings), machine_name)


def http_address(settings: Settings) -> Address | None:
    """Return the address for HTTP; None: there is no HTTP."""
    host = bound_host(settings, BIND_ADDRESS, TLS)
    return bound_address(settings, HTTP_PORT, HTTP_BIND_ADDRESS, host)
