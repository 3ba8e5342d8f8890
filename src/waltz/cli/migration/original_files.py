"""The configuration files of the Java original: which keys are served here, and a file with them.

Owns the roles, keys of older releases, and the conversion. Values are not changed: a key has the
same name and the same meaning in both programs, or it is dropped. What is served is asked of the
keys of each kind of process. Sources: Java Waltz, `WaltzServerConfig`, `WaltzStorageConfig`,
`CliConfig`.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml

from waltz.configuration import server_settings, storage_settings, tools_settings
from waltz.configuration.coordinator_settings import CLUSTER_ROOT, ZOOKEEPER_CONNECT
from waltz.configuration.keys import Key
from waltz.configuration.listening import LOOPBACK_HOST
from waltz.configuration.settings import Given, Settings
from waltz.configuration.tls_settings import TlsKeys
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError
from waltz.types import ANY_HOST


class Role(StrEnum):
    """The kind of process that a file is for."""

    SERVER = "server"
    STORAGE = "storage"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True)
class RoleKeys:
    """The keys of a role here, and the class that has those of the original."""

    java_class: str
    keys: Sequence[Key[Any]]
    judged: Callable[[Mapping[str, Given]], Settings]
    tls: TlsKeys
    tls_prefix: str
    bind: Key[str] | None
    http_port: Key[int] | None


ROLES: Final[Mapping[Role, RoleKeys]] = {
    Role.SERVER: RoleKeys(
        "WaltzServerConfig",
        server_settings.SERVER_KEYS,
        server_settings.server_settings,
        server_settings.TLS,
        "server.ssl",
        server_settings.BIND_ADDRESS,
        server_settings.HTTP_PORT,
    ),
    Role.STORAGE: RoleKeys(
        "WaltzStorageConfig",
        storage_settings.STORAGE_KEYS,
        storage_settings.storage_settings,
        storage_settings.TLS,
        "storage.ssl",
        storage_settings.BIND_ADDRESS,
        storage_settings.HTTP_PORT,
    ),
    Role.TOOLS: RoleKeys(
        "CliConfig",
        tools_settings.TOOL_KEYS,
        tools_settings.tool_settings,
        tools_settings.TLS,
        "ssl",
        None,
        None,
    ),
}

CLUSTER_KEY: Final = "cluster.key"
PARTITION_COUNT: Final = "cluster.numPartitions"
TOLD_BY_THE_COORDINATOR: Final = (
    "storage nodes of older releases were told it; now the coordinator tells them"
)
OLDER_KEYS: Final = dict.fromkeys((CLUSTER_KEY, PARTITION_COUNT), TOLD_BY_THE_COORDINATOR)
"""Keys that the original had once, and the reason why they are dropped."""

SAID_BY_PEM: Final = "the PEM file needs none"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A key that the new file does not have. `is_known` False: neither program knows it."""

    name: str
    reason: str
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class Conversion:
    """A file of the original, as one of ours. `added` says why keys are there that the original's
    file does not have; `faults` is why a process would refuse the new file."""

    role: Role
    given: Mapping[str, Given]
    kept: Mapping[str, object]
    added: Mapping[str, str]
    dropped: tuple[Dropped, ...]
    faults: tuple[str, ...]
    settings: Settings | None
    """The judged settings of the new file; None: it would be refused."""


def read_original(path: Path) -> dict[str, Given]:
    """Return what a file sets, by dotted name. Raises ConfigurationError."""
    try:
        return read_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not text in UTF-8: {error.reason}") from error


def role_of(given: Mapping[str, Given]) -> Role:
    """Return the role of a file by its keys. Raises ConfigurationError: they do not tell."""
    storage = any(
        name.startswith("storage.") and name in {key.name for key in storage_settings.STORAGE_KEYS}
        for name in given
    )
    if any(name.startswith("server.") for name in given):
        return Role.SERVER
    if storage or {*OLDER_KEYS} & {*given}:
        return Role.STORAGE
    if ZOOKEEPER_CONNECT.name in given or CLUSTER_ROOT.name in given:
        return Role.TOOLS
    raise ConfigurationError(
        "it has no key by which a server, a storage node or the tools of the original are known;"
        " name its role"
    )


def convert(
    role: Role,
    given: Mapping[str, Given],
    *,
    pem_files: Mapping[str, str],
    place: Mapping[str, Given],
) -> Conversion:
    """Return the file of the original as one of ours.

    pem_files  per key of a store (`server.ssl.keyStore.location`), the PEM file in its place.
    place      keys of the cluster's place, for a file that has none: those of the tools' file.
    """
    known = {key.name: key for key in ROLES[role].keys}
    kept: dict[str, object] = {}
    added: dict[str, str] = {}
    dropped = []
    for name, found in given.items():
        if (reason := _why_dropped(role, name, known, pem_files)) is not None:
            dropped.append(reason)
        else:
            kept[name] = pem_files.get(name, found.value)
    if role is not Role.TOOLS and ZOOKEEPER_CONNECT.name not in kept:
        for name in (ZOOKEEPER_CONNECT.name, CLUSTER_ROOT.name):
            if name in place and name not in kept:
                kept[name] = place[name].value
                added[name] = "as in the file of the tools; the original's file does not have it"
    bind, tls = ROLES[role].bind, ROLES[role].tls
    if bind is not None and bind.name not in kept and tls.authorities.name not in kept:
        kept[bind.name] = ANY_HOST
        added[bind.name] = (
            "as the original listens, which has no such key: at all addresses, and peers are not"
            f" authenticated; {LOOPBACK_HOST} is for this machine only"
        )
    settings: Settings | None = None
    faults: tuple[str, ...] = ()
    try:
        settings = ROLES[role].judged({name: Given(kept[name], "converted") for name in kept})
    except ConfigurationError as error:
        faults = _separate(error)
    return Conversion(role, given, kept, added, tuple(dropped), faults, settings)


def _why_dropped(
    role: Role, name: str, known: Mapping[str, Key[Any]], pem_files: Mapping[str, str]
) -> Dropped | None:
    if name in OLDER_KEYS:
        return Dropped(name, OLDER_KEYS[name])
    store, _, last = name.rpartition(".")
    if last in ("type", "password") and f"{store}.location" in pem_files:
        return Dropped(name, SAID_BY_PEM)
    if name in known:
        reason = known[name].unused
        return Dropped(name, reason) if reason else None
    for other, keys in ROLES.items():
        if other is not role and any(key.name == name for key in keys.keys):
            return Dropped(name, f"a key for {other}; the original ignores it here, too")
    folded = {key.lower(): key for key in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    hint = f"; {folded[near[0]]} is one" if near else ""
    return Dropped(name, f"neither program has such a key{hint}", is_known=False)


def _separate(error: ConfigurationError) -> tuple[str, ...]:
    """Return the faults in the text of an error, each by itself."""
    first, *more = str(error).splitlines()
    return tuple(line.strip() for line in more) or (first.removeprefix("configuration: "),)


def lines(conversion: Conversion, source: str) -> Iterator[str]:
    """Yield the new file; each key that is dropped stands in a comment with the reason.

    A value of a secret that is dropped is not shown.
    """
    java = ROLES[conversion.role].java_class
    yield f"# Converted from {_on_one_line(source)}, a file of Java Waltz ({java})."
    for name, value in conversion.kept.items():
        if name in conversion.added:
            yield f"# Added: {conversion.added[name]}."
        yield f"{name}: {_shown(value)}"
    for each in conversion.dropped:
        yield f"# Dropped: {_on_one_line(each.name)}: {each.reason}."


def _shown(value: object) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, str):
        text: str = yaml.safe_dump(value, default_style='"', allow_unicode=True, width=math.inf)
        return text.rstrip("\n")
    if isinstance(value, bool | int | None):
        return json.dumps(value)
    # Dates, and numbers that JSON does not have; inside a list nothing follows the value.
    shown: str = yaml.safe_dump([value], default_flow_style=True, width=math.inf)
    return shown.strip().removeprefix("[").removesuffix("]")


def _on_one_line(text: str) -> str:
    """Return a text that cannot end the comment that it stands in."""
    return text if text.isprintable() else json.dumps(text)
