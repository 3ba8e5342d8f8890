"""The keys that say where a cluster's metadata is: the same ones for every process.

There are two ways, ours and the original's, and a file takes one of them.
Source: Waltz Server and Waltz Storage, "Configuration".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from waltz.configuration.keys import Key, connect_string, coordinator, node_path, whole_number
from waltz.configuration.settings import Given, Settings, judge
from waltz.limits import ZOOKEEPER_SESSION_MILLISECONDS
from waltz.types import CoordinatorAddress, Plain, TlsSettings, ZooKeeperAddress

COORDINATOR_ADDRESS: Final = Key(
    name="coordinator.address",
    kind=coordinator(),
    default_text="**required**, or zookeeper.connectString",
    option="--coordinator",
    description="Where the cluster's metadata is: the embedded coordinator, which `waltz up` runs,"
    " or a ZooKeeper.",
)
ZOOKEEPER_CONNECT: Final = Key(
    name="zookeeper.connectString",
    kind=connect_string(),
    default_text="**required**, or coordinator.address",
    description="ZooKeeper's addresses; the original's way to say where the metadata is.",
)
ZOOKEEPER_TIMEOUT: Final = Key(
    name="zookeeper.sessionTimeout",
    kind=whole_number(1, 1 << 31, "milliseconds"),
    default=ZOOKEEPER_SESSION_MILLISECONDS,
    description="How long ZooKeeper waits for a process that has gone silent; with"
    " zookeeper.connectString.",
)
CLUSTER_ROOT: Final = Key(
    name="cluster.root",
    kind=node_path(),
    default="/waltz",
    description="Where the cluster's data is in ZooKeeper, below the chroot if there is one; with"
    " zookeeper.connectString.",
)

ZOOKEEPER_KEYS: Final[tuple[Key[Any], ...]] = (ZOOKEEPER_CONNECT, ZOOKEEPER_TIMEOUT, CLUSTER_ROOT)

WAYS_TO_THE_COORDINATOR: Final = (COORDINATOR_ADDRESS.name, ZOOKEEPER_CONNECT.name)
"""Exactly one of the keys of these names is to be given."""


def judge_with_coordinator(keys: Sequence[Key[Any]], given: Mapping[str, Given]) -> Settings:
    """Return the settings that `given` makes; `keys` have all that are here.

    Raises ConfigurationError: every fault there is.
    """
    ways = [key for key in keys if key.name in WAYS_TO_THE_COORDINATOR]
    settings = judge(keys, _over_the_file(given), one_of=ways)
    if not settings.is_set(ZOOKEEPER_CONNECT):
        settings.warnings += tuple(
            f"{key.name} ({given[key.name].origin}) has no effect: it goes with"
            f" {ZOOKEEPER_CONNECT.name}, and {COORDINATOR_ADDRESS.name} says it in its address"
            for key in ZOOKEEPER_KEYS
            if settings.is_set(key)
        )
    return settings


def _over_the_file(given: Mapping[str, Given]) -> Mapping[str, Given]:
    """Return `given` without the ZooKeeper of the file, where the option names a coordinator: it
    overrides the file, whichever of the two ways the file has."""
    found = given.get(COORDINATOR_ADDRESS.name)
    if found is None or found.origin != COORDINATOR_ADDRESS.option:
        return given
    of_the_file = {key.name for key in ZOOKEEPER_KEYS}
    return {name: given[name] for name in given if name not in of_the_file}


def coordinator_address(settings: Settings) -> CoordinatorAddress:
    """Where the cluster's metadata is; a chroot and the root behind it are one path here."""
    found = settings.get(ZOOKEEPER_CONNECT)
    if found is None:
        return settings[COORDINATOR_ADDRESS]
    return found._replace(
        root=found.root + settings[CLUSTER_ROOT],
        session_milliseconds=settings[ZOOKEEPER_TIMEOUT],
    )


def warn_of_plain_zookeeper(settings: Settings, tls: TlsSettings) -> None:
    """Add a warning where `tls` allows nothing plain and the metadata is in a ZooKeeper."""
    address = coordinator_address(settings)
    if tls.plain_with is Plain.NEVER and isinstance(address, ZooKeeperAddress):
        warning = (
            f"connections to ZooKeeper at {address.connect_string} are plain all the same: this"
            " release has no TLS for them; keep them on a network that you trust"
        )
        settings.warnings = (*settings.warnings, warning)
