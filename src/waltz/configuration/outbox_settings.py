"""The configuration of an outbox's relay: the database, the cluster, and how rows are taken.

Owns the keys that an operator may set. The database's address may come from the environment, since
it may have a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from waltz.configuration.http_settings import HTTP_ACCESS_KEYS, http_faults
from waltz.configuration.keys import Key, ValueKind, address, number, text, whole_number
from waltz.configuration.settings import Given, Settings, raise_faults, weigh
from waltz.configuration.tls_settings import tls_faults, tls_keys
from waltz.errors import ConfigurationError
from waltz.limits import PARTITIONS_MAX
from waltz.types import ClusterAddress, parse_cluster


def cluster() -> ValueKind[ClusterAddress]:
    """Return the kind of addresses of a cluster: of servers, or of its coordinator."""

    def convert(value: object) -> ClusterAddress:
        if not isinstance(value, str):
            raise ValueError
        try:
            return parse_cluster(value)
        except ConfigurationError:
            raise ValueError from None

    return ValueKind(
        "waltz://host:port,host:port (servers), or host:port or zookeeper://... (the coordinator)",
        convert,
    )


DIALECTS: Final = ("postgresql", "mysql", "mariadb", "sqlite")
"""The kinds of databases that can have an outbox, as SQLAlchemy names them."""

DATABASE: Final = Key(
    name="outbox.database",
    kind=text("an SQLAlchemy URL"),
    default_text="`$WALTZ_DATABASE`",
    secret=True,
    description="Database of the application, which has the outbox: PostgreSQL, MySQL, MariaDB or"
    " SQLite.",
)
TABLE: Final = Key(
    name="outbox.table",
    kind=text("the name of a table"),
    default="waltz_outbox",
    description="Table of the outbox; the relay's own tables have its name with `_relay` and"
    " `_parked`.",
)
CLUSTER: Final = Key(
    name="outbox.cluster",
    kind=cluster(),
    required=True,
    description="Cluster that takes the rows.",
)
PARTITION_COUNT: Final = Key(
    name="outbox.partitionCount",
    kind=whole_number(1, PARTITIONS_MAX),
    default_text="those that the cluster has at the first start",
    description="Number of partitions, from 0 on, that keys are spread over. It stays what it was"
    " at the first start, so that a key stays in its partition when partitions are added.",
)
ROWS: Final = Key(
    name="outbox.rows",
    kind=whole_number(1, 5_000),
    default=500,
    description="Rows that are claimed at a time.",
)
EVERY: Final = Key(
    name="outbox.every",
    kind=number(0.01, 3_600, "seconds"),
    default=0.2,
    description="Interval at which an empty outbox is looked at.",
)
TAKE_OVER: Final = Key(
    name="outbox.takeOver",
    kind=number(0.5, 3_600, "seconds"),
    default=10.0,
    description="Time without a sign of life of the relay that holds the outbox after which a relay"
    " that stands by takes over. Too short a time costs work, and never a row.",
)
OUTBOX_HTTP_ADDRESS: Final = Key(
    name="outbox.httpAddress",
    kind=address(),
    default_text="no HTTP",
    description="Address for /health, /live and /metrics.",
)

OUTBOX_TLS: Final = tls_keys("ssl", shows_token=True)
"""TLS keys for connections to servers and an embedded coordinator."""

OUTBOX_KEYS: Final[tuple[Key[Any], ...]] = (
    DATABASE,
    TABLE,
    CLUSTER,
    PARTITION_COUNT,
    ROWS,
    EVERY,
    TAKE_OVER,
    OUTBOX_HTTP_ADDRESS,
    *HTTP_ACCESS_KEYS,
    *OUTBOX_TLS.all,
)


def outbox_settings(given: Mapping[str, Given]) -> Settings:
    """Return the settings of a relay. Raises ConfigurationError with every fault."""
    settings, faults = weigh(OUTBOX_KEYS, given)
    faults += tls_faults(settings, OUTBOX_TLS, listens=False)
    raise_faults(faults + http_faults(settings, settings.get(OUTBOX_HTTP_ADDRESS)))
    return settings
