"""The log's nouns as values: identifiers, addresses, settings of secure connections.

Owns the names that all other modules use. Knows nothing of bytes on a wire or a disk: records and
their layout are in `record.py`. Source: Waltz Internals, "Terminology".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, NewType, TypeAlias

from waltz.errors import ConfigurationError

PartitionId = NewType("PartitionId", int)
"""Zero-based; a cluster's number of partitions may grow and never shrinks."""

TransactionId = NewType("TransactionId", int)
"""Dense per partition, from 0. As a mark (high-water, low-water) it may be `NOTHING`."""

Generation = NewType("Generation", int)
"""Counts the changes of a partition's server; the first server has generation 1."""

SessionId = NewType("SessionId", int)
"""The number of a store session; only grows per partition, the first is 0."""

ClientId = NewType("ClientId", int)
ServerId = NewType("ServerId", int)

NOTHING: Final = TransactionId(-1)
"""The mark of a partition, replica or client that holds nothing yet."""

NO_SESSION: Final = SessionId(-1)

NO_CLIENT: Final = ClientId(-1)
"""Asks and is no client: nothing is mounted or appended in this name. The original's tools use
the same."""

NO_GENERATION: Final = Generation(-1)


SEQUENCE_NUMBER_MAX: Final = 2**31 - 1
"""The last sequence number of a client ID in a partition: the field is a signed 32-bit number."""


class RequestId(NamedTuple):
    """The identity of an append: unique among the appends of a cluster.

    Four signed 32-bit numbers. `sequence_number` counts from 1 per client and partition.
    Source: Client-Server Communication, "Request ID".
    """

    client_id: ClientId
    generation: Generation
    partition_id: PartitionId
    sequence_number: int


def following_number(sequence_number: int) -> int:
    """Return the sequence number after this one, after the last one 1 again: for requests that are
    answered, not for appends, whose numbers the log keeps."""
    return sequence_number % SEQUENCE_NUMBER_MAX + 1


PORT_DIGITS_MAX: Final = 5


class Address(NamedTuple):
    """The address of a listening process: host name or IP address, and TCP port."""

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
        if len(port) > PORT_DIGITS_MAX or not 1 <= int(port) <= 65535:
            raise ConfigurationError(f"port out of range in address {text!r}; expected 1 to 65535")
        return cls(host, int(port))


ANY_HOST: Final = "0.0.0.0"  # noqa: S104 -- what the original listens on; here with CAs only
EVERYWHERE: Final = (ANY_HOST, "::")
"""Addresses to listen on that nobody can connect to."""


def is_local(host: str) -> bool:
    """Whether only this machine can connect to `host`; no name is resolved."""
    return host == "localhost" or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether the IP address `host` is this machine's own."""
    from ipaddress import IPv6Address, ip_address  # not needed by what only parses addresses

    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


JAVA_STORE_TO_PEM: Final = (
    "a Java key store becomes PEM with `keytool -importkeystore -srckeystore STORE -destkeystore"
    " store.p12 -deststoretype PKCS12` and then `openssl pkcs12 -in store.p12 -nodes -out"
    " store.pem`, with -nokeys for trusted CAs; a PKCS12 store needs the second command only"
)


class CertificateNames(NamedTuple):
    """The names in a certificate, each kind in the certificate's order.

    `distinguished_name` is the whole subject, `C=US,O=Bank,CN=spark`, with a backslash before
    `,`, `+`, `=` and backslashes in values."""

    uris: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    common_names: tuple[str, ...] = ()
    distinguished_name: str = ""


class LocalUser(NamedTuple):
    """A user of this machine, as the system proves it; `name` is empty if the user has none."""

    uid: int
    name: str = ""


class NameSource(Enum):
    """A kind of name in a certificate by which a policy may know a peer."""

    URI = "uri-san"
    DNS = "dns-san"
    COMMON_NAME = "cn"
    DISTINGUISHED_NAME = "dn"


NAME_SOURCES: Final = tuple(NameSource)
"""The order in which names are looked for unless another one is configured."""


class Plain(Enum):
    """The peers with which a process speaks without TLS."""

    NEVER = "never"
    LOOPBACK = "loopback"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The identity that a process shows its peers, and the CAs that it trusts: paths of PEM files.

    `certificate` is the chain, own certificate first, `key` its private key (None: in the same
    file). Without a certificate a listening process makes itself a self-signed one. `authorities`
    are the trusted CAs: with them every peer has to show a certificate, without them any peer is
    believed, as in the original. `plain` None means plain on loopback, or never if a certificate or
    authorities are given.

    `token` is a bearer token that a connecting process shows in place of a certificate, to a server
    whose certificate it has verified; it needs `authorities`. `token_file` is the path of a file
    that has the token. With `takes_tokens` a listening process that has authorities lets peers
    without a certificate in, who then have to show a token.

    `local_sockets` is the directory in which a connecting process looks for the socket of a process
    on this machine before it uses the port; there the system proves both sides, and no TLS is
    spoken. None: only ports are used.
    """

    certificate: str | None = None
    key: str | None = None
    password: str | None = field(default=None, repr=False)
    authorities: str | None = None
    verify_host_name: bool = True
    plain: Plain | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    takes_tokens: bool = False
    local_sockets: str | None = None

    @property
    def plain_with(self) -> Plain:
        if self.plain is not None:
            return self.plain
        return Plain.NEVER if self.files else Plain.LOOPBACK

    @property
    def believes_everybody(self) -> bool:
        """Whether a peer on another machine is believed without a CA's certificate."""
        return self.authorities is None or self.plain_with is Plain.ALWAYS

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of all files that are read."""
        named = (self.certificate, self.key, self.authorities, self.token_file)
        return tuple(dict.fromkeys(each for each in named if each))


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """The protection of an HTTP port.

    `tls` None: the port is plain. `tokens` is the path of a file of tokens, of which each request
    but those of probes has to show one; None: no request needs a token.
    """

    tls: TlsSettings | None = None
    tokens: str | None = None


PLAIN_HTTP: Final = HttpAccess()


class ZooKeeperAcl(Enum):
    """The rights on nodes that a process creates in a ZooKeeper."""

    OPEN = "open"
    CREATOR = "creator"


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """The way to connect to a ZooKeeper, and the rights on created nodes.

    `tls` None: plain. `user` and `password` are for ZooKeeper's digest scheme; None: no user.
    Created nodes are open to all (`acl` OPEN), as those of the original, or to their creator only.
    """

    tls: TlsSettings | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    acl: ZooKeeperAcl = ZooKeeperAcl.OPEN


OPEN_ACCESS: Final = ZooKeeperAccess()


ZOOKEEPER_SCHEME: Final = "zookeeper"
ZOOKEEPER_SESSION_KEY: Final = "sessionTimeout"
MILLISECONDS_DIGITS_MAX: Final = 9
"""Digits of a session's length: eleven days."""


class ZooKeeperAddress(NamedTuple):
    """The place of a cluster in a ZooKeeper: servers, the cluster's root node, session length.

    `root` empty means the default. `session_milliseconds` is requested; the servers decide.
    `access` is not part of the text: it has a password, and paths of one machine.
    """

    servers: tuple[Address, ...]
    root: str
    session_milliseconds: int | None = None
    access: ZooKeeperAccess = OPEN_ACCESS

    @property
    def connect_string(self) -> str:
        """The servers in the form of ZooKeeper's own tools."""
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
        scheme, _, place = text.partition("://")
        place, has_query, query = place.partition("?")
        servers, slash, root = place.partition("/")
        name, _, milliseconds = query.partition("=")
        if scheme != ZOOKEEPER_SCHEME or (has_query and name != ZOOKEEPER_SESSION_KEY):
            raise ConfigurationError(
                f"not a ZooKeeper address: {text!r}; expected {ZOOKEEPER_SCHEME}://host:port/root"
            )
        is_number = (
            milliseconds.isascii()
            and milliseconds.isdigit()
            and len(milliseconds) <= MILLISECONDS_DIGITS_MAX
            and int(milliseconds) > 0
        )
        if has_query and not is_number:
            raise ConfigurationError(
                f"{ZOOKEEPER_SESSION_KEY} is {milliseconds!r} in {text!r}; expected milliseconds"
            )
        return cls(
            parse_servers(servers),
            (slash + root).rstrip("/"),
            int(milliseconds) if has_query else None,
        )


ZOOKEEPER_PORT: Final = 2181
"""ZooKeeper's default port."""


def parse_servers(text: str) -> tuple[Address, ...]:
    """Return the addresses written as `host:port,host`. Raises ConfigurationError."""
    return tuple(
        Address.parse(name if _has_port(name) else f"{name}:{ZOOKEEPER_PORT}")
        for name in map(str.strip, text.split(","))
    )


def _has_port(name: str) -> bool:
    return not name or ":" in name.rpartition("]")[2]


CoordinatorAddress: TypeAlias = Address | ZooKeeperAddress
"""The place of a cluster's metadata: an embedded coordinator, or a ZooKeeper."""


def parse_coordinator(text: str) -> CoordinatorAddress:
    """Return the address written as `host:port` or `zookeeper://host:port,host:port/root`.

    Raises ConfigurationError.
    """
    return ZooKeeperAddress.parse(text) if "://" in text else Address.parse(text)


SERVERS_SCHEME: Final = "waltz"


class ServersAddress(NamedTuple):
    """Addresses of some servers of a cluster; these know the others, so no coordinator is needed.

    `refused` are the entries that are no addresses, each with the reason.
    """

    servers: tuple[Address, ...]
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{SERVERS_SCHEME}://{','.join(map(str, self.servers))}"

    @classmethod
    def parse(cls, text: str) -> ServersAddress:
        """Return the addresses written as `waltz://host:port,[ipv6]:port`, each once, in order.

        Raises ConfigurationError: none of the entries is an address; the text says why of each.
        Source: IEP-90, "Initial connection": at least one valid entry.
        """
        scheme, _, entries = text.partition("://")
        if scheme != SERVERS_SCHEME:
            raise ConfigurationError(
                f"not a list of servers: {text!r}; expected {SERVERS_SCHEME}://host:port,host:port"
            )
        servers: dict[Address, None] = {}
        refused = []
        for entry in map(str.strip, entries.removesuffix("/").split(",")):
            try:
                servers[Address.parse(entry)] = None
            except ConfigurationError as error:
                refused.append(str(error))
        if not servers:
            raise ConfigurationError(f"no server in {text!r}: {'; '.join(refused)}")
        return cls(tuple(servers), tuple(refused))


ClusterAddress: TypeAlias = CoordinatorAddress | ServersAddress


def parse_cluster(text: str) -> ClusterAddress:
    """Return the address of a cluster, by its servers (`waltz://…`) or by its coordinator.

    Raises ConfigurationError.
    """
    if text.startswith(f"{SERVERS_SCHEME}://"):
        return ServersAddress.parse(text)
    return parse_coordinator(text)


ReplicaId = NewType("ReplicaId", str)
"""A storage node as the cluster's metadata names it: its connect string `host:port`."""
