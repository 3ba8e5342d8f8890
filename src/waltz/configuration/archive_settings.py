"""The configuration of an archive: where it is, what is archived, how often and how carefully.

Owns the keys that an operator may set. Credentials are no keys: they come from the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from waltz.configuration.coordinator_settings import (
    COORDINATOR_ADDRESS,
    ZOOKEEPER_ACCESS_KEYS,
    ZOOKEEPER_KEYS,
    weigh_with_coordinator,
)
from waltz.configuration.http_settings import HTTP_ACCESS_KEYS, http_faults
from waltz.configuration.keys import Key, ValueKind, address, number, text, whole_number
from waltz.configuration.settings import Given, Settings, raise_faults
from waltz.configuration.tls_settings import tls_faults, tls_keys
from waltz.limits import PARTITIONS_MAX
from waltz.types import Address

MEBIBYTE: Final = 1024 * 1024

VERIFY_REPLICAS_MAX: Final = 64
"""Copies of a partition that archived records may be compared with before each commit."""


def partition_list() -> ValueKind[frozenset[int]]:
    """Return the kind of lists of partition IDs."""

    def convert(value: object) -> frozenset[int]:
        if isinstance(value, frozenset):
            return value
        if not isinstance(value, list) or not value:
            raise ValueError
        if not all(type(each) is int and 0 <= each < PARTITIONS_MAX for each in value):
            raise ValueError
        return frozenset(value)

    return ValueKind("a list of partition IDs", convert, lambda value: str(sorted(value)))


TARGET: Final = Key(
    name="archive.target",
    kind=text("file:///directory or s3://bucket/prefix"),
    required=True,
    description="Place of the archive. The endpoint and the credentials of a bucket come from the"
    " environment: `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`,"
    " `AWS_SECRET_ACCESS_KEY`, or from the machine's role.",
)
PARTITIONS: Final = Key(
    name="archive.partitions",
    kind=partition_list(),
    default_text="all",
    description="Partitions that this process archives.",
)
EVERY: Final = Key(
    name="archive.every",
    kind=number(0.1, 86_400, "seconds"),
    default=10.0,
    description="Interval at which the log is asked for new transactions; a disaster loses at most"
    " about as much.",
)
OBJECT_BYTES: Final = Key(
    name="archive.objectBytes",
    kind=whole_number(4096, 64 * MEBIBYTE, "bytes"),
    default=64 * MEBIBYTE,
    description="Bytes of records in one object, unless a single record is larger.",
)
VERIFY_REPLICAS: Final = Key(
    name="archive.verifyReplicas",
    kind=whole_number(0, VERIFY_REPLICAS_MAX),
    default=1,
    description="Copies of the log, besides the one that is read, that must hold exactly the same"
    " records before these are committed, as far as the partition has that many. 0: records are"
    " read through the servers, and nothing is compared.",
)
RATE: Final = Key(
    name="archive.rateBytesPerSecond",
    kind=whole_number(1024, 1 << 40, "bytes per second"),
    default_text="no limit",
    description="Bytes of records read from the log per second, of all copies together.",
)
HTTP_ADDRESS: Final = Key(
    name="archive.httpAddress",
    kind=address(),
    default_text="no HTTP",
    description="Address for /health, /live and /metrics.",
)

TLS: Final = tls_keys("ssl")
"""TLS keys for connections to servers, storage nodes and an embedded coordinator."""

ARCHIVE_KEYS: Final[tuple[Key[Any], ...]] = (
    TARGET,
    PARTITIONS,
    EVERY,
    OBJECT_BYTES,
    VERIFY_REPLICAS,
    RATE,
    HTTP_ADDRESS,
    *HTTP_ACCESS_KEYS,
    COORDINATOR_ADDRESS,
    *ZOOKEEPER_KEYS,
    *ZOOKEEPER_ACCESS_KEYS,
    *TLS.all,
)


def archive_settings(given: Mapping[str, Given]) -> Settings:
    """Return the settings of an archive. Raises ConfigurationError with every fault."""
    settings, faults = weigh_with_coordinator(ARCHIVE_KEYS, given)
    faults += tls_faults(settings, TLS, listens=False)
    raise_faults(faults + http_faults(settings, http_address(settings)))
    return settings


def http_address(settings: Settings) -> Address | None:
    """Return the address of the HTTP port; None: there is none."""
    return settings.get(HTTP_ADDRESS)
