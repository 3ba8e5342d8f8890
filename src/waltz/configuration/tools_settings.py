"""The configuration of the command-line tools: the cluster's address and the way to reach it.

Names of the tools of Java Waltz are valid here and mean the same.
Source: Java Waltz, `CliConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from waltz.configuration.coordinator_settings import (
    COORDINATOR_ADDRESS,
    ZOOKEEPER_ACCESS_KEYS,
    ZOOKEEPER_KEYS,
    weigh_with_coordinator,
)
from waltz.configuration.keys import Key, whole_number
from waltz.configuration.settings import Given, Settings, raise_faults
from waltz.configuration.tls_settings import tls_faults, tls_keys

ZOOKEEPER_CONNECT_MILLISECONDS: Final = 10_000
"""The time for which the original's tools wait for a ZooKeeper that does not answer."""


CONNECT_TIMEOUT: Final = Key(
    name="zookeeper.connectTimeout",
    kind=whole_number(1, 1 << 31, "milliseconds"),
    default=ZOOKEEPER_CONNECT_MILLISECONDS,
    description="Time for which a command waits for a coordinator that does not answer.",
)

TLS: Final = tls_keys("ssl")
"""TLS keys for connections to servers, storage nodes and an embedded coordinator."""

TOOL_KEYS: Final[tuple[Key[Any], ...]] = (
    replace(COORDINATOR_ADDRESS, option="--cluster"),
    *ZOOKEEPER_KEYS,
    *ZOOKEEPER_ACCESS_KEYS,
    CONNECT_TIMEOUT,
    *TLS.all,
)


def tool_settings(given: Mapping[str, Given]) -> Settings:
    """Return the settings of a tool. Raises ConfigurationError with every fault."""
    settings, faults = weigh_with_coordinator(TOOL_KEYS, given)
    raise_faults([*faults, *tls_faults(settings, TLS, listens=False)])
    return settings
