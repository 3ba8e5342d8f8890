"""The configuration of a storage node: its keys, and their meaning together.

Names of Java Waltz are valid here and mean the same; the others are ours.
Source: Waltz Storage, "Configuration".
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
    boolean,
    host_name,
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
from waltz.configuration.tls_settings import tls_faults, tls_keys, tls_settings
from waltz.errors import ConfigurationError
from waltz.limits import (
    DISK_FREE_BYTES_MIN,
    DISK_FREE_PERCENT_MIN,
    HANDSHAKE_SECONDS_LIMIT,
    HANDSHAKE_SECONDS_MAX,
    SCRUB_BYTES_PER_SECOND,
    SCRUB_INTERVAL_SECONDS,
    SEGMENT_BYTES_THRESHOLD,
    SEGMENTS_OPEN_MAX,
    SHUTDOWN_SECONDS_LIMIT,
    SHUTDOWN_SECONDS_MAX,
)
from waltz.storage.directory.space import FreeMinimum, size_text
from waltz.types import Address

SEGMENTS_OPEN_LIMIT: Final = 10_000
"""The most that segment.cache.capacity may be: each segment takes two file descriptors."""

DISK_FREE_BYTES_LEAST: Final = 1024**2
"""The least that diskFreeMin may be in bytes; a number meant as a percentage is below it."""

SCRUB_BYTES_PER_SECOND_LEAST: Final = 64 * 1024
"""The least that scrub.bytesPerSecond may be: at this rate 100 GiB take three weeks."""


NO_GRAPHITE: Final = "metrics are not sent to Graphite; set storage.jetty.port and scrape /metrics"


def _free_minimum() -> ValueKind[FreeMinimum]:
    def convert(value: object) -> FreeMinimum:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        try:
            minimum = FreeMinimum.parse(str(value))
        except ConfigurationError as error:
            raise ValueError from error
        # A plain 5 is meant as 5 %, and would be 5 bytes.
        if minimum.size_bytes < DISK_FREE_BYTES_LEAST:
            raise ValueError
        return minimum

    def show(minimum: FreeMinimum) -> str:
        return f"{minimum.percent:g}%" if minimum.percent < 100 else str(minimum.size_bytes)

    return ValueKind(
        "a share like 5%, a size like 64MiB, or bytes, at least"
        f" {size_text(DISK_FREE_BYTES_LEAST)}",
        convert,
        show,
    )


BIND_ADDRESS: Final = bind_key("storage", "the data port")
PORT: Final = Key(
    name="storage.port",
    kind=port(),
    required=True,
    option="--address",
    description="Data port, to which servers connect.",
)
ADMIN_BIND_ADDRESS: Final = Key(
    name="storage.admin.bindAddress",
    kind=host_name(),
    default_text="that of storage.bindAddress",
    option="--admin-address",
    description="Address at which the admin port listens.",
)
ADMIN_PORT: Final = Key(
    name="storage.admin.port",
    kind=port(),
    required=True,
    option="--admin-address",
    description="Admin port, to which tools connect.",
)
ADVERTISED_ADDRESS: Final = Key(
    name="storage.advertisedAddress",
    kind=address(),
    default_text="storage.port at storage.bindAddress, or at the machine's name where that is all"
    " interfaces",
    option="--advertised",
    description="Address by which the cluster knows this node. The coordinator registers the node's"
    " directory under this address, and the start warns if the cluster has no storage node of"
    " this address.",
)
DIRECTORY: Final = Key(
    name="storage.directory",
    kind=text("the path of an existing directory"),
    required=True,
    option="--directory",
    description="Directory of the records. It must exist, and no other node may use it.",
)
SEGMENT_THRESHOLD: Final = Key(
    name="storage.segment.size.threshold",
    kind=whole_number(1, 1 << 50, "bytes"),
    default=SEGMENT_BYTES_THRESHOLD,
    option="--segment-size-threshold",
    description="Size above which a segment file is complete, so that the next append starts a"
    " new one.",
)
SEGMENT_CACHE: Final = Key(
    name="storage.segment.cache.capacity",
    kind=whole_number(1, SEGMENTS_OPEN_LIMIT, "segments"),
    default=SEGMENTS_OPEN_MAX,
    description="Maximum number of complete segments kept open per partition; each takes two file"
    " descriptors.",
)
HANDSHAKE_TIMEOUT: Final = Key(
    name="storage.handshakeTimeout",
    kind=number(0.1, HANDSHAKE_SECONDS_LIMIT, "seconds"),
    default=HANDSHAKE_SECONDS_MAX,
    description="Time within which a server or tool that has connected must have completed TLS,"
    " Hello and open request.",
)
SHUTDOWN_TIMEOUT: Final = Key(
    name="storage.shutdownTimeout",
    kind=number(0.1, SHUTDOWN_SECONDS_LIMIT, "seconds"),
    default=SHUTDOWN_SECONDS_MAX,
    description="Maximum duration of a stop. After it the process names what is stuck and ends"
    " with status 1; no answered append is lost.",
)
DISK_FREE_MIN: Final = Key(
    name="storage.diskFreeMin",
    kind=_free_minimum(),
    default_text=f"{DISK_FREE_PERCENT_MIN:g}%, but at most {size_text(DISK_FREE_BYTES_MIN)}",
    option="--disk-free-min",
    description="Minimum free space on the directory's file system. Below it the node refuses"
    " appends and nothing else; below twice as much the log warns. The node accepts"
    " appends again by itself once there is room.",
)
SCRUB_ENABLED: Final = Key(
    name="storage.scrub.enabled",
    kind=boolean(),
    default=True,
    description="Whether to re-read all records continually, so that damage is found while other"
    " replicas can still repair it.",
)
SCRUB_RATE: Final = Key(
    name="storage.scrub.bytesPerSecond",
    kind=whole_number(SCRUB_BYTES_PER_SECOND_LEAST, 1 << 40, "bytes"),
    default=SCRUB_BYTES_PER_SECOND,
    description="Maximum rate at which that pass over the records reads.",
)
SCRUB_INTERVAL: Final = Key(
    name="storage.scrub.interval",
    kind=number(1, 366 * 24 * 3600, "seconds"),
    default=SCRUB_INTERVAL_SECONDS,
    description="Pause between the end of a pass over all partitions and the start of the next"
    " one.",
)
HTTP_PORT, HTTP_BIND_ADDRESS = http_keys("storage")
COORDINATOR: Final = replace(
    COORDINATOR_ADDRESS,
    description=f"{COORDINATOR_ADDRESS.description} The node reads the cluster key and the number"
    " of partitions there when it starts, and later checks there whether a server's"
    " session was ever assigned.",
)


TLS: Final = tls_keys("storage.ssl")
"""TLS keys for the data port, the admin port, and connections to the coordinator."""


def _graphite(suffix: str, kind: Any, description: str) -> Key[Any]:
    return Key(
        name=f"storage.graphite.{suffix}", kind=kind, unused=NO_GRAPHITE, description=description
    )


STORAGE_KEYS: Final[tuple[Key[Any], ...]] = (
    DIRECTORY,
    COORDINATOR,
    *ZOOKEEPER_KEYS,
    *ZOOKEEPER_ACCESS_KEYS,
    PORT,
    BIND_ADDRESS,
    ADVERTISED_ADDRESS,
    ADMIN_PORT,
    ADMIN_BIND_ADDRESS,
    HTTP_PORT,
    HTTP_BIND_ADDRESS,
    *HTTP_ACCESS_KEYS,
    SEGMENT_THRESHOLD,
    SEGMENT_CACHE,
    DISK_FREE_MIN,
    SCRUB_ENABLED,
    SCRUB_RATE,
    SCRUB_INTERVAL,
    HANDSHAKE_TIMEOUT,
    SHUTDOWN_TIMEOUT,
    *TLS.all,
    PRINCIPAL_FROM,
    POLICY,
    POLICY_DEMANDED,
    BREAK_GLASS,
    LOCAL_SOCKETS,
    *AUDIT_KEYS,
    _graphite("hostname", host_name(), "Graphite's host."),
    _graphite("port", port(), "Graphite's port."),
    _graphite("prefix", text(), "Prefix of the metrics' names."),
    _graphite("reportIntervalMs", whole_number(1, 1 << 31), "Interval at which metrics are sent."),
    _graphite("useUdp", boolean(), "Send by UDP."),
)


def storage_settings(given: Mapping[str, Given]) -> Settings:
    """Return the settings of a storage node. Raises ConfigurationError with every fault."""
    settings, faults = weigh_with_coordinator(STORAGE_KEYS, given)
    faults += different(settings, (PORT, ADMIN_PORT, HTTP_PORT))
    faults += tls_faults(settings, TLS, listens=True)
    faults += narrowed_faults(settings, BIND_ADDRESS, ADVERTISED_ADDRESS, TLS)
    faults += http_faults(settings, http_address(settings))
    raise_faults(faults)
    warn_of_plain_zookeeper(settings, tls_settings(settings, TLS, listens=True))
    return settings


def is_on_loopback_unasked(settings: Settings) -> bool:
    """Whether the node listens on loopback only because no address was set."""
    return is_narrowed(settings, BIND_ADDRESS, TLS)


def data_address(settings: Settings) -> Address:
    return Address(bound_host(settings, BIND_ADDRESS, TLS), settings[PORT])


def advertised_address(settings: Settings, machine_name: str) -> Address:
    return told_address(settings, ADVERTISED_ADDRESS, data_address(settings), machine_name)


def admin_address(settings: Settings) -> Address:
    host = settings.get(ADMIN_BIND_ADDRESS) or bound_host(settings, BIND_ADDRESS, TLS)
    return Address(host, settings[ADMIN_PORT])


def http_address(settings: Settings) -> Address | None:
    """Return the address for HTTP; None: there is no HTTP."""
    host = bound_host(settings, BIND_ADDRESS, TLS)
    return bound_address(settings, HTTP_PORT, HTTP_BIND_ADDRESS, host)
