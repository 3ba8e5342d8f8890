"""The log's nouns as values: identifiers and addresses.

Owns the names everything else speaks in. Knows nothing of bytes on a wire or a disk: records and
their layout are in `record.py`. Source: Waltz Internals, "Terminology".
"""

from __future__ import annotations

from typing import Final, NamedTuple, NewType, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from waltz.errors import ConfigurationError

PartitionId = NewType("PartitionId", int)
"""Zero-based; a cluster's partition count is fixed when it is created."""

TransactionId = NewType("TransactionId", int)
"""Dense per partition, from 0. As a mark (high-water, low-water) it may be `NOTHING`."""

Generation = NewType("Generation", int)
"""How often a partition has changed its server; the first owner has generation 1."""

SessionId = NewType("SessionId", int)
"""A store session; grows for ever per partition, the first is 0."""

ClientId = NewType("ClientId", int)
ServerId = NewType("ServerId", int)

NOTHING: Final = TransactionId(-1)
"""The mark of a partition, replica or client that holds nothing yet."""

NO_SESSION: Final = SessionId(-1)
NO_GENERATION: Final = Generation(-1)


class RequestId(NamedTuple):
    """Who asked for an append: unique among the appends of a cluster.

    Four signed 32-bit numbers. `sequence_number` counts from 1 per client and partition.
    Source: Client-Server Communication, "Request ID".
    """

    client_id: ClientId
    generation: Generation
    partition_id: PartitionId
    sequence_number: int


class Address(NamedTuple):
    """Where a process listens: host name or IP address, and TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address written as `host:port` or `[ipv6]:port`.

        Raises ConfigurationError: no host, no port, or a port outside 1 to 65535.
        """
        host, separator, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            host = ""
        if not (separator and host and port.isascii() and port.isdigit()):
            raise ConfigurationError(f"not an address: {text!r}; expected host:port")
        if not 1 <= int(port) <= 65535:
            raise ConfigurationError(f"port out of range in address {text!r}; expected 1 to 65535")
        return cls(host, int(port))


ZOOKEEPER_SCHEME: Final = "zookeeper"
ZOOKEEPER_SESSION_KEY: Final = "sessionTimeout"


class ZooKeeperAddress(NamedTuple):
    """Where a cluster is in a ZooKeeper: servers, the cluster's root node, the session's length.

    `root` empty stands for the usual one. `session_milliseconds` is asked for; the servers decide.
    """

    servers: tuple[Address, ...]
    root: str
    session_milliseconds: int | None = None

    @property
    def connect_string(self) -> str:
        """The servers as ZooKeeper's own tools write them."""
        return ",".join(map(str, self.servers))

    def __str__(self) -> str:
        query = (
            ""
            if self.session_milliseconds is None
            else (f"?{ZOOKEEPER_SESSION_KEY}={self.session_milliseconds}")
        )
        return f"{ZOOKEEPER_SCHEME}://{self.connect_string}{self.root}{query}"

    @classmethod
    def parse(cls, text: str) -> ZooKeeperAddress:
        """Return the address written as `zookeeper://host:port,host:port/root?sessionTimeout=ms`.

        Raises ConfigurationError: no server, not an address, a time-out that is not a number of
        milliseconds, or anything else in it.
        """
        expected = f"expected {ZOOKEEPER_SCHEME}://host:port,host:port/root"
        parts = urlsplit(text)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        session = query.pop(ZOOKEEPER_SESSION_KEY, None)
        if parts.scheme != ZOOKEEPER_SCHEME or parts.fragment or query:
            raise ConfigurationError(f"not a ZooKeeper address: {text!r}; {expected}")
        if session is not None and not (session.isascii() and session.isdigit() and int(session)):
            raise ConfigurationError(
                f"{ZOOKEEPER_SESSION_KEY} is {session!r} in {text!r}; expected milliseconds"
            )
        return cls(
            parse_servers(parts.netloc),
            parts.path.rstrip("/"),
            None if session is None else int(session),
        )


def parse_servers(text: str) -> tuple[Address, ...]:
    """Return the addresses written as `host:port,host:port`. Raises ConfigurationError."""
    return tuple(Address.parse(part.strip()) for part in text.split(","))


CoordinatorAddress: TypeAlias = Address | ZooKeeperAddress
"""Where a cluster's metadata is: in an embedded coordinator, or in a ZooKeeper."""


def parse_coordinator(text: str) -> CoordinatorAddress:
    """Return the address written as `host:port` or `zookeeper://host:port,host:port/root`.

    Raises ConfigurationError.
    """
    return ZooKeeperAddress.parse(text) if "://" in text else Address.parse(text)


ReplicaId = NewType("ReplicaId", str)
"""A storage node as the cluster's metadata names it: its connect string `host:port`."""
