"""The keys for the place of a cluster's metadata, the same for every process.

There are two ways to name it, ours and the original's; a file uses one of them.
Source: Waltz Server and Waltz Storage, "Configuration".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from waltz.configuration.keys import (
    Key,
    acl,
    boolean,
    connect_string,
    coordinator,
    node_path,
    text,
    whole_number,
)
from waltz.configuration.settings import Given, Settings, raise_faults, weigh
from waltz.configuration.tls_settings import tls_faults, tls_keys, tls_settings
from waltz.types import (
    CoordinatorAddress,
    Plain,
    TlsSettings,
    ZooKeeperAccess,
    ZooKeeperAcl,
    ZooKeeperAddress,
)

ZOOKEEPER_SESSION_MILLISECONDS: Final = 30_000
"""The session timeout that the original's tools ask for."""


COORDINATOR_ADDRESS: Final = Key(
    name="coordinator.address",
    kind=coordinator(),
    default_text="**required**, or zookeeper.connectString",
    option="--coordinator",
    description="Address of the cluster's metadata: the embedded coordinator, which `waltz up`"
    " runs, or a ZooKeeper.",
)
ZOOKEEPER_CONNECT: Final = Key(
    name="zookeeper.connectString",
    kind=connect_string(),
    default_text="**required**, or coordinator.address",
    description="Addresses of the ZooKeeper that has the cluster's metadata; Java Waltz's key for"
    " it.",
)
ZOOKEEPER_TIMEOUT: Final = Key(
    name="zookeeper.sessionTimeout",
    kind=whole_number(1, 1 << 31, "milliseconds"),
    default=ZOOKEEPER_SESSION_MILLISECONDS,
    description="Time after which ZooKeeper ends the session of a silent process; only with"
    " zookeeper.connectString.",
)
CLUSTER_ROOT: Final = Key(
    name="cluster.root",
    kind=node_path(),
    default="/waltz",
    description="Path of the cluster's metadata in ZooKeeper, below the chroot if there is one;"
    " only with zookeeper.connectString.",
)

ZOOKEEPER_KEYS: Final[tuple[Key[Any], ...]] = (ZOOKEEPER_CONNECT, ZOOKEEPER_TIMEOUT, CLUSTER_ROOT)

ZOOKEEPER_SECURE: Final = Key(
    name="zookeeper.client.secure",
    kind=boolean(),
    default=False,
    description="Whether to speak TLS with ZooKeeper, on its `secureClientPort`. This key, like"
    " those below `zookeeper.ssl`, has the name that ZooKeeper gives it.",
)
ZOOKEEPER_TLS: Final = tls_keys("zookeeper.ssl")
"""The keys for TLS with ZooKeeper; `ZOOKEEPER_SECURE` replaces the one for plain connections."""

ZOOKEEPER_USER: Final = Key(
    name="zookeeper.auth.user",
    kind=text(),
    description="User as which this process authenticates to ZooKeeper, by its `digest` scheme;"
    " needs zookeeper.auth.password.",
    guarded="zookeeper.auth",
)
ZOOKEEPER_PASSWORD: Final = Key(
    name="zookeeper.auth.password",
    kind=text(),
    description="Password of that user. Without TLS it is sent in plain text: set"
    " zookeeper.client.secure.",
    secret=True,
    guarded="zookeeper.auth",
)
ZOOKEEPER_ACL: Final = Key(
    name="zookeeper.acl",
    kind=acl(),
    default=ZooKeeperAcl.OPEN,
    description="Access to the ZooKeeper nodes that this process creates: `open` lets everybody"
    " read and change them, `creator` only the user or certificate that created them."
    " Java Waltz creates open nodes, so every process of a cluster with Java peers"
    " needs `open`; with `creator` all processes need the same user.",
)
ZOOKEEPER_ACCESS_KEYS: Final[tuple[Key[Any], ...]] = (
    ZOOKEEPER_SECURE,
    *(
        replace(key, option="")
        for key in ZOOKEEPER_TLS.all
        if key is not ZOOKEEPER_TLS.plain and not key.unused
    ),
    ZOOKEEPER_USER,
    ZOOKEEPER_PASSWORD,
    ZOOKEEPER_ACL,
)
"""Keys that are valid with either way to name a ZooKeeper."""

WAYS_TO_THE_COORDINATOR: Final = (COORDINATOR_ADDRESS.name, ZOOKEEPER_CONNECT.name)
"""Exactly one of the keys of these names must be given."""


def weigh_with_coordinator(
    keys: Sequence[Key[Any]], given: Mapping[str, Given]
) -> tuple[Settings, list[str]]:
    """Return the settings of the valid part of `given`, and every fault of the rest; how further
    keys go together is not judged here. `keys` must include all keys of this module."""
    ways = [key for key in keys if key.name in WAYS_TO_THE_COORDINATOR]
    settings, faults = weigh(keys, _over_the_file(given), one_of=ways)
    if not settings.is_set(ZOOKEEPER_CONNECT):
        settings.warnings += tuple(
            f"{key.name} ({given[key.name].origin}) has no effect without"
            f" {ZOOKEEPER_CONNECT.name}: with {COORDINATOR_ADDRESS.name} the address itself says"
            " it"
            for key in ZOOKEEPER_KEYS
            if settings.is_set(key)
        )
    if _is_in_zookeeper(settings):
        faults += _access_faults(settings)
    else:
        settings.warnings += tuple(
            f"{key.name} ({given[key.name].origin}) has no effect: the coordinator is no ZooKeeper"
            for key in ZOOKEEPER_ACCESS_KEYS
            if settings.is_set(key)
        )
    return settings, faults


def _is_in_zookeeper(settings: Settings) -> bool:
    chosen: CoordinatorAddress | None = settings.get(COORDINATOR_ADDRESS)
    return settings.is_set(ZOOKEEPER_CONNECT) or isinstance(chosen, ZooKeeperAddress)


def _access_faults(settings: Settings) -> list[str]:
    faults = tls_faults(settings, ZOOKEEPER_TLS, listens=False)
    is_secure = settings[ZOOKEEPER_SECURE] or not settings.is_sound(ZOOKEEPER_SECURE)
    faults += [
        (
            f"{key.name} is set and {ZOOKEEPER_SECURE.name} is not; set {ZOOKEEPER_SECURE.name} to"
            " true"
        )
        for key in ZOOKEEPER_TLS.all
        if settings.is_set(key) and not is_secure
    ]
    has_user = settings.is_set(ZOOKEEPER_USER)
    if has_user is not settings.is_set(ZOOKEEPER_PASSWORD):
        faults.append(
            f"only one of {ZOOKEEPER_USER.name} and {ZOOKEEPER_PASSWORD.name} is set; set both"
        )
    if ":" in (settings.get(ZOOKEEPER_USER) or ""):
        faults.append(
            f"{ZOOKEEPER_USER.name} contains a colon; expected a name without one, since ZooKeeper"
            " ends the name there"
        )
    choice = settings[ZOOKEEPER_ACL]
    is_somebody = has_user or settings.is_set(ZOOKEEPER_TLS.certificate)
    if choice is ZooKeeperAcl.CREATOR and not is_somebody:
        faults.append(
            f"{ZOOKEEPER_ACL.name} is {choice.value} and this process does not authenticate to"
            f" ZooKeeper; set {ZOOKEEPER_USER.name}, or {ZOOKEEPER_TLS.certificate.name}"
        )
    return faults


def coordinator_hosts(settings: Settings) -> tuple[str, ...]:
    """Return the hosts of the coordinator; none if no valid setting names them."""
    found: CoordinatorAddress | None = settings.get(ZOOKEEPER_CONNECT) or settings.get(
        COORDINATOR_ADDRESS
    )
    if found is None:
        return ()
    servers = found.servers if isinstance(found, ZooKeeperAddress) else (found,)
    return tuple(dict.fromkeys(server.host for server in servers))


def zookeeper_access(settings: Settings) -> ZooKeeperAccess:
    """Return the way to connect to a ZooKeeper; no file is read. Raises ConfigurationError: half of
    what is needed is missing."""
    raise_faults(_access_faults(settings))
    tls = replace(tls_settings(settings, ZOOKEEPER_TLS, listens=False), plain=Plain.NEVER)
    return ZooKeeperAccess(
        tls if settings[ZOOKEEPER_SECURE] else None,
        settings.get(ZOOKEEPER_USER),
        settings.get(ZOOKEEPER_PASSWORD),
        settings[ZOOKEEPER_ACL],
    )


def _over_the_file(given: Mapping[str, Given]) -> Mapping[str, Given]:
    """Return `given` without the file's ZooKeeper if an option names a coordinator: the option
    overrides the file, whichever of the two ways the file uses."""
    found = given.get(COORDINATOR_ADDRESS.name)
    if found is None or found.origin != COORDINATOR_ADDRESS.option:
        return given
    of_the_file = {key.name for key in ZOOKEEPER_KEYS}
    return {name: given[name] for name in given if name not in of_the_file}


def coordinator_address(settings: Settings) -> CoordinatorAddress:
    """Return the address of the cluster's metadata; a chroot and the root become one path."""
    found = settings.get(ZOOKEEPER_CONNECT)
    if found is None:
        chosen = settings[COORDINATOR_ADDRESS]
        if not isinstance(chosen, ZooKeeperAddress):
            return chosen
        return chosen._replace(access=zookeeper_access(settings))
    return found._replace(
        root=found.root + settings[CLUSTER_ROOT],
        session_milliseconds=settings[ZOOKEEPER_TIMEOUT],
        access=zookeeper_access(settings),
    )


def warn_of_plain_zookeeper(settings: Settings, tls: TlsSettings) -> None:
    """Add a warning if `tls` allows nothing plain but the ZooKeeper is reached without TLS."""
    address = coordinator_address(settings)
    if not isinstance(address, ZooKeeperAddress) or address.access.tls is not None:
        return
    if tls.plain_with is Plain.NEVER:
        warning = (
            f"connections to ZooKeeper at {address.connect_string} are plain nevertheless: set"
            f" {ZOOKEEPER_SECURE.name}, or keep these connections on a network that you trust"
        )
        settings.warnings = (*settings.warnings, warning)
