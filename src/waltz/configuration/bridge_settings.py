"""The configuration of a bridge: the cluster, the webhook, and what is posted.

Owns the keys that an operator may set. The secret is in a file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from waltz.configuration.http_settings import HTTP_ACCESS_KEYS, http_faults
from waltz.configuration.keys import Key, ValueKind, address, boolean, number, text, whole_number
from waltz.configuration.outbox_settings import cluster
from waltz.configuration.settings import Given, Settings, raise_faults, weigh
from waltz.configuration.tls_settings import tls_faults, tls_keys
from waltz.limits import PARTITIONS_MAX

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""Hosts to which plain HTTP is allowed without a word."""

HEADER_MIN: Final = -(2**31)
HEADER_MAX: Final = 2**31 - 1
NUMBERS_MAX: Final = 100_000
"""Length of a list of numbers."""


def webhook_url() -> ValueKind[str]:
    def convert(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError
        found = value.strip()
        parts = urlsplit(found)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError
        if parts.username is not None or parts.fragment or not found.isascii():
            raise ValueError
        if any(each <= " " or each == "\x7f" for each in found):
            raise ValueError
        _ = parts.port  # raises ValueError
        return found

    return ValueKind("https://host[:port]/path, in ASCII, without a user or a fragment", convert)


def numbers(low: int, high: int, what: str) -> ValueKind[tuple[int, ...]]:
    """Return the kind of lists of whole numbers: a list, text with commas, or a single number."""
    one = whole_number(low, high)

    def convert(value: object) -> tuple[int, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list):
            parts = [parts]
        if not 1 <= len(parts) <= NUMBERS_MAX:
            raise ValueError
        return tuple(dict.fromkeys(one.convert(each) for each in parts))

    return ValueKind(
        f"{what}, separated by commas", convert, lambda found: ",".join(map(str, found))
    )


def choice(*names: str) -> ValueKind[str]:
    def convert(value: object) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return ValueKind(" or ".join(names), convert)


BRIDGE_CLUSTER: Final = Key(
    name="bridge.cluster",
    kind=cluster(),
    required=True,
    description="Cluster whose transactions are delivered.",
)
URL: Final = Key(
    name="bridge.url",
    kind=webhook_url(),
    required=True,
    secret=True,
    description="Address of the webhook. `http://` is for this machine only, unless"
    " `bridge.plainHttp` allows it.",
)
PLAIN_HTTP_ALLOWED: Final = Key(
    name="bridge.plainHttp",
    kind=boolean(),
    default=False,
    description="Whether transactions may go over a network unencrypted.",
)
CA_FILE: Final = Key(
    name="bridge.caFile",
    kind=text("a file of certificates in PEM"),
    default_text="the system's authorities",
    description="Authorities that may have issued the receiver's certificate; no other ones may.",
)
SECRET_FILE: Final = Key(
    name="bridge.secretFile",
    kind=text("a file"),
    required=True,
    description="File with the secret of the signatures, at least 16 bytes in one line. With a"
    " second line, an older secret, each post has a signature of either.",
)
PROGRESS: Final = Key(
    name="bridge.progress",
    kind=text("a file"),
    required=True,
    description="File that keeps what was posted. It belongs to one cluster and one webhook.",
)
START: Final = Key(
    name="bridge.start",
    kind=choice("first", "latest"),
    default="first",
    description="Where a partition begins of which the progress knows nothing yet: with its first"
    " transaction, or with the next one to come.",
)
PARTITIONS: Final = Key(
    name="bridge.partitions",
    kind=numbers(0, PARTITIONS_MAX - 1, "numbers of partitions"),
    default_text="all that the cluster has when the bridge starts",
    description="Partitions that are delivered.",
)
HEADERS: Final = Key(
    name="bridge.headers",
    kind=numbers(HEADER_MIN, HEADER_MAX, "headers of transactions"),
    default_text="all",
    description="Headers of the transactions that are delivered; all others are left out.",
)
DATA: Final = Key(
    name="bridge.data",
    kind=choice("base64", "json"),
    default="base64",
    description="Form of the data. `json`: data of at most 1 MiB that is JSON is put in as `data`,"
    " all other data as `data_base64`.",
)
COUNT: Final = Key(
    name="bridge.count",
    kind=whole_number(1, 10_000),
    default=500,
    description="Transactions in one post, or one Kafka transaction, at most.",
)
BODY_BYTES: Final = Key(
    name="bridge.bytes",
    kind=whole_number(1_024, 64 * 1024 * 1024, "bytes"),
    default=1024 * 1024,
    description="Bytes of one post, at most, unless a single transaction has more.",
)
TIMEOUT: Final = Key(
    name="bridge.timeout",
    kind=number(0.1, 600, "seconds"),
    default=30.0,
    description="Time for one attempt: to connect, to send, and to be answered.",
)
RETRY_MAX: Final = Key(
    name="bridge.retryMax",
    kind=number(0.1, 3_600, "seconds"),
    default=60.0,
    description="Longest pause between two attempts. The first is at most 0.5 s, and it doubles. A"
    " webhook's Retry-After counts up to 300 s.",
)
CONNECTIONS: Final = Key(
    name="bridge.connections",
    kind=whole_number(1, 1_000),
    default=16,
    description="Posts, or Kafka transactions, under way at a time, each of another partition.",
)
BRIDGE_HTTP_ADDRESS: Final = Key(
    name="bridge.httpAddress",
    kind=address(),
    default_text="no HTTP",
    description="Address for /health, /live and /metrics.",
)

BRIDGE_TLS: Final = tls_keys("ssl", shows_token=True)
"""TLS keys for connections to servers and an embedded coordinator."""

BRIDGE_KEYS: Final[tuple[Key[Any], ...]] = (
    BRIDGE_CLUSTER,
    URL,
    PLAIN_HTTP_ALLOWED,
    CA_FILE,
    SECRET_FILE,
    PROGRESS,
    START,
    PARTITIONS,
    HEADERS,
    DATA,
    COUNT,
    BODY_BYTES,
    TIMEOUT,
    RETRY_MAX,
    CONNECTIONS,
    BRIDGE_HTTP_ADDRESS,
    *HTTP_ACCESS_KEYS,
    *BRIDGE_TLS.all,
)


def bridge_settings(given: Mapping[str, Given]) -> Settings:
    """Return the settings of a bridge. Raises ConfigurationError with every fault."""
    settings, faults = weigh(BRIDGE_KEYS, given)
    faults += tls_faults(settings, BRIDGE_TLS, listens=False)
    url = settings.get(URL)
    if url is not None and not settings.get(PLAIN_HTTP_ALLOWED):
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname not in LOOPBACK_HOSTS:
            faults.append(
                f"{URL.name}: plain HTTP to another machine: use https://, or set"
                f" {PLAIN_HTTP_ALLOWED.name}"
            )
    raise_faults(faults + http_faults(settings, settings.get(BRIDGE_HTTP_ADDRESS)))
    return settings
