"""The configuration of a bridge to Kafka: the cluster, the topic, and how Kafka is reached.

Owns the keys that an operator may set, and which properties of librdkafka are among them. Secrets
are in files of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from waltz.configuration.bridge_settings import (
    BRIDGE_CLUSTER,
    BRIDGE_HTTP_ADDRESS,
    BRIDGE_TLS,
    CONNECTIONS,
    COUNT,
    HEADERS,
    LOOPBACK_HOSTS,
    PARTITIONS,
    RETRY_MAX,
    START,
    choice,
)
from waltz.configuration.http_settings import HTTP_ACCESS_KEYS, http_faults
from waltz.configuration.keys import Key, ValueKind, number, text, whole_number
from waltz.configuration.settings import Given, Settings, raise_faults, weigh
from waltz.configuration.tls_settings import tls_faults
from waltz.errors import ConfigurationError

KAFKA_PREFIX: Final = "bridge.kafka"
"""Keys with this prefix make a file that of a bridge to Kafka; an unknown one is an error."""

SERVERS_MAX: Final = 100
TOPIC_CHARACTERS_MAX: Final = 249
"""Length of a topic's name, as Kafka has it."""

NAME_CHARACTERS_MAX: Final = 100
KAFKA_SECRET_BYTES_MAX: Final = 64 * 1024
"""Size of a file with a secret."""

PROGRESS_SUFFIX: Final = ".waltz-progress"

_SERVER: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_WORD: Final = re.compile(r"[A-Za-z0-9._-]+")


def servers() -> ValueKind[str]:
    def convert(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError
        parts = [each.strip() for each in value.split(",")]
        if len(parts) > SERVERS_MAX:
            raise ValueError
        for each in parts:
            found = _SERVER.fullmatch(each)
            if found is None or not 1 <= int(found[2]) <= 65_535:
                raise ValueError
        return ",".join(parts)

    return ValueKind("host:port, or several with commas between", convert)


def word(characters_max: int) -> ValueKind[str]:
    """Return the kind of names as topics have them."""

    def convert(value: object) -> str:
        if not isinstance(value, str) or not _WORD.fullmatch(value) or value in (".", ".."):
            raise ValueError
        if len(value) > characters_max:
            raise ValueError
        return value

    return ValueKind(f"at most {characters_max} of the letters a-z, A-Z, digits, . _ -", convert)


def _key(name: str, kind: ValueKind[Any], description: str, **more: Any) -> Key[Any]:
    return Key(
        name=f"{KAFKA_PREFIX}.{name}", kind=kind, description=description, guarded=KAFKA_PREFIX,
        **more,
    )  # fmt: skip


KAFKA_SERVERS: Final[Key[str]] = _key(
    "servers", servers(), "Kafka's brokers, or some of them.", required=True
)
TOPIC: Final[Key[str]] = _key(
    "topic",
    word(TOPIC_CHARACTERS_MAX),
    "Topic that takes the transactions. It has to be there, with a partition for each of the log's"
    " that is delivered, by its number.",
    required=True,
)
NAME: Final[Key[str]] = _key(
    "name",
    word(NAME_CHARACTERS_MAX),
    "The bridge's name. The progress goes by it, and of two processes of one name the later one"
    " replaces the other.",
    required=True,
)
PROGRESS_TOPIC: Final[Key[str]] = _key(
    "progressTopic",
    word(TOPIC_CHARACTERS_MAX),
    "Topic that keeps the progress, compacted, with as many partitions as the other one. The bridge"
    " creates it if it is not there.",
    default_text=f"`bridge.kafka.topic` and `{PROGRESS_SUFFIX}`",
)
RECORD_KEY: Final[Key[str]] = _key(
    "key",
    choice("none", "transaction"),
    "Key of the records: none, or `partition:transaction`. A compacted topic needs one.",
    default="none",
)
RUN_BYTES: Final[Key[int]] = _key(
    "bytes",
    whole_number(1_024, 64 * 1024 * 1024, "bytes"),
    "Bytes of one Kafka transaction, at most, unless a single transaction of the log has more.",
    default=4 * 1024 * 1024,
)
KAFKA_TIMEOUT: Final[Key[float]] = _key(
    "timeout",
    number(2.0, 900, "seconds"),
    "Time for one attempt, and Kafka's `transaction.timeout.ms`: after the death of a bridge its"
    " open transaction keeps readers waiting for so long, unless it is started again. Kafka's"
    " `transaction.max.timeout.ms` is the most.",
    default=30.0,
)
PASSWORD_FILE: Final[Key[str]] = _key(
    "sasl.passwordFile", text("a file"), "File with the password of SASL, in one line."
)
KEY_PASSWORD_FILE: Final[Key[str]] = _key(
    "ssl.key.passwordFile", text("a file"), "File with the password of `ssl.key.location`."
)

SECURITY: Final = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")

SECURITY_PROTOCOL: Final[Key[str]] = _key(
    "security.protocol",
    choice(*SECURITY),
    "How brokers are spoken to.",
    default_text="`plaintext` if all `bridge.kafka.servers` are this machine; else it has to be"
    " said",
)

PROPERTY_KEYS: Final[tuple[Key[Any], ...]] = (
    SECURITY_PROTOCOL,
    _key("sasl.mechanism", choice(*MECHANISMS), "How the bridge shows who it is."),
    _key("sasl.username", text("a name"), "User of SASL."),
    _key("sasl.kerberos.service.name", text("a name"), "Kafka's name with Kerberos."),
    _key("sasl.kerberos.principal", text("a name"), "The bridge's name with Kerberos."),
    _key("sasl.kerberos.keytab", text("a file"), "Keytab of that name."),
    _key(
        "ssl.ca.location",
        text("a file of certificates in PEM"),
        "Authorities that may have issued the brokers' certificates.",
        default_text="the system's authorities",
    ),
    _key("ssl.certificate.location", text("a file in PEM"), "The bridge's certificate."),
    _key("ssl.key.location", text("a file in PEM"), "Private key of that certificate."),
    _key("client.rack", text("a name"), "Rack of the bridge, for brokers that ask."),
    _key("client.dns.lookup", choice("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
         "How names of brokers are looked up."),
    _key(
        "compression.type",
        choice("none", "gzip", "snappy", "lz4", "zstd"),
        "How batches of records are compressed. The bound of a record's size counts before.",
        default="none",
    ),
    _key("linger.ms", whole_number(0, 10_000, "ms"), "Time that a batch waits for more records.",
         default=5),
)  # fmt: skip
"""Properties of librdkafka, by their own names; every other one is refused."""

KAFKA_BRIDGE_KEYS: Final[tuple[Key[Any], ...]] = (
    BRIDGE_CLUSTER,
    KAFKA_SERVERS,
    TOPIC,
    NAME,
    PROGRESS_TOPIC,
    RECORD_KEY,
    START,
    PARTITIONS,
    HEADERS,
    COUNT,
    RUN_BYTES,
    KAFKA_TIMEOUT,
    RETRY_MAX,
    CONNECTIONS,
    *PROPERTY_KEYS,
    PASSWORD_FILE,
    KEY_PASSWORD_FILE,
    BRIDGE_HTTP_ADDRESS,
    *HTTP_ACCESS_KEYS,
    *BRIDGE_TLS.all,
)


def is_for_kafka(given: Mapping[str, Given]) -> bool:
    """Return whether a file is that of a bridge to Kafka."""
    return any(name.startswith(f"{KAFKA_PREFIX}.") for name in given)


def kafka_bridge_settings(given: Mapping[str, Given]) -> Settings:
    """Return the settings of a bridge to Kafka. Raises ConfigurationError with every fault."""
    settings, faults = weigh(KAFKA_BRIDGE_KEYS, given)
    faults += tls_faults(settings, BRIDGE_TLS, listens=False)
    topic = settings.get(TOPIC)
    if topic is not None and progress_topic(settings) == topic:
        faults.append(f"{PROGRESS_TOPIC.name} is the topic of the transactions: it is for itself")
    if topic is not None and len(progress_topic(settings)) > TOPIC_CHARACTERS_MAX:
        faults.append(
            f"{PROGRESS_TOPIC.name}: {TOPIC.name} is too long for a default: name a topic"
        )
    faults += _security_faults(settings, given)
    raise_faults(faults + http_faults(settings, settings.get(BRIDGE_HTTP_ADDRESS)))
    return settings


def _security_faults(settings: Settings, given: Mapping[str, Given]) -> list[str]:
    protocol = settings.get(SECURITY_PROTOCOL)
    if protocol is None and SECURITY_PROTOCOL.name not in given:
        hosts = [each.rpartition(":")[0] for each in (settings.get(KAFKA_SERVERS) or "").split(",")]
        if any(each.strip("[]") not in (*LOOPBACK_HOSTS, "") for each in hosts):
            fault = (
                f"{SECURITY_PROTOCOL.name} is missing: with {KAFKA_SERVERS.name} on another machine"
                " say ssl or sasl_ssl, or plaintext if transactions may go unencrypted"
            )
            return [fault]
        protocol = SECURITY[0]
    if protocol is None:
        return []  # it was refused
    wrong = [
        name
        for name in given
        if (name.startswith(f"{KAFKA_PREFIX}.sasl.") and not protocol.startswith("sasl_"))
        or (name.startswith(f"{KAFKA_PREFIX}.ssl.") and not protocol.endswith("ssl"))
    ]
    return [f"{each} has no effect with {SECURITY_PROTOCOL.name} {protocol}" for each in wrong]


def progress_topic(settings: Settings) -> str:
    """Return the topic of the progress."""
    named = settings.get(PROGRESS_TOPIC)
    return f"{settings[TOPIC]}{PROGRESS_SUFFIX}" if named is None else named


def kafka_properties(settings: Settings) -> dict[str, str]:
    """Return the properties of librdkafka, the secrets among them. Raises ConfigurationError: a
    file with a secret cannot be read."""
    found = {
        key.name.removeprefix(f"{KAFKA_PREFIX}."): str(value)
        for key in PROPERTY_KEYS
        if (value := settings.get(key)) is not None
    }
    for key, name in (
        (PASSWORD_FILE, "sasl.password"),
        (KEY_PASSWORD_FILE, "ssl.key.password"),
    ):
        path = settings.get(key)
        if path is not None:
            found[name] = _secret(key.name, path)
    return found


def _secret(name: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            text_of = file.read(KAFKA_SECRET_BYTES_MAX + 1).decode()
    except OSError as error:
        raise ConfigurationError(f"{name}: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{name}: {path} is not text in UTF-8") from error
    lines = text_of.splitlines()
    if len(text_of) > KAFKA_SECRET_BYTES_MAX or len(lines) != 1 or not lines[0]:
        raise ConfigurationError(f"{name}: {path} is to have one line, the secret")
    return lines[0]
