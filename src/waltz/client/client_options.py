"""The options of a client, with defaults."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from waltz.client.applying.blocked import OnApplyFailure
from waltz.client.lifecycle_events import LifecycleListener
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.connections.logical_handshake import ConnectionSettings
from waltz.connections.retry import RetryPolicy, RetryReads
from waltz.errors import ConfigurationError
from waltz.limits import (
    CLIENT_AHEAD_SECONDS,
    CLIENT_CLOSE_SECONDS,
    CONNECTION_SECONDS_MAX,
    LONG_WAIT_SECONDS,
    MOUNT_SECONDS_MAX,
    RECONNECT_SECONDS_MAX,
    REFRESH_SECONDS,
    WORKER_THREADS_MAX,
)
from waltz.types import Address
from waltz.wire.client_label import ClientLabel, check_label
from waltz.wire.client_protocol import CLIENT_CODEC

TRANSACTIONS_PENDING_MAX: Final = 5
"""client.maxConcurrentTransactions: unfinished appends per partition; further submits wait."""

REGISTRATION_SECONDS_MAX: Final = 10.0
"""Seconds that a submit waits for room before the partition is flushed."""

RETRY_THREADS: Final = 1
"""client.numTransactionRetryThreads: failed contexts that are executed again at the same time."""

APPLY_ATTEMPTS_MAX: Final = 5
"""Attempts after which a transaction is parked or its partition stopped, if that is the policy."""

BLOCKED_SECONDS_MAX: Final = 10.0
"""Seconds that a flush waits for a partition whose next transaction cannot be applied."""

TRANSACTIONS_PENDING_LIMIT: Final = 100_000
"""The most that client.maxConcurrentTransactions may be."""

OPERATION_SECONDS_MAX: Final = 60.0
"""Seconds that a call that reads waits for a server, over all its attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of a client. Raises ConfigurationError: a value is out of range; the message
    names it."""

    max_concurrent_transactions: int = TRANSACTIONS_PENDING_MAX
    """Transactions per partition between their submit and their verdict; further submits wait."""

    retry_threads: int = RETRY_THREADS
    """Failed contexts that are executed again at the same time; with 0 a failed context is not
    executed again and ends."""

    mount_seconds_max: float = MOUNT_SECONDS_MAX
    """Seconds that a submit waits for its partition to have a server."""

    registration_seconds_max: float = REGISTRATION_SECONDS_MAX
    """Seconds that a submit waits for room before the partition is flushed."""

    long_wait_seconds: float = LONG_WAIT_SECONDS
    """Seconds without another append after which the client asks for the outcome of the last
    appends."""

    close_seconds_max: float = CLIENT_CLOSE_SECONDS
    """Seconds that closing waits for running callbacks."""

    heartbeat_interval_seconds: float | None = None
    """Seconds between two heartbeats on a connection; at most a third of its server's idle
    time-out, and exactly that with None."""

    heartbeat_timeout_seconds: float | None = None
    """Seconds without any answer to a heartbeat after which the server is taken for dead; None:
    twice the interval."""

    protocol_version_max: int = CLIENT_CODEC.versions[-1]
    """The latest version of the client protocol that the client offers to servers."""

    partitions: Collection[int] | None = None
    """The partitions to follow and to write to at first, which `set_partitions` may change; None
    for all, for good."""

    root: str = DEFAULT_ROOT
    """The cluster's path in the coordinator's tree."""

    servers: Sequence[Address] = ()
    """Servers that describe the cluster; if empty, the coordinator does. An address `waltz://…`
    sets this."""

    connection_seconds_max: float = CONNECTION_SECONDS_MAX
    """With `servers`: seconds that opening waits for the first of them to answer."""

    reconnect_seconds_max: float = RECONNECT_SECONDS_MAX
    """The longest pause between two attempts to reach a server that is down."""

    refresh_seconds: float = REFRESH_SECONDS
    """With `servers`: seconds between two attempts at a server without a connection, its name
    resolved anew; 0 for never."""

    operation_seconds_max: float = OPERATION_SECONDS_MAX
    """Seconds that a call that reads waits, over all its attempts, unless the call has its own
    limit."""

    retry_policy: RetryPolicy = field(default_factory=RetryReads)
    """Decides whether an operation whose connection was lost is repeated."""

    on_apply_failure: OnApplyFailure = OnApplyFailure.WAIT
    """The policy for a transaction that the application cannot apply; the strings `"wait"`,
    `"park"` and `"stop"` are accepted too."""

    apply_attempts_max: int = APPLY_ATTEMPTS_MAX
    """With `park` and `stop`: attempts after which that transaction is parked or its partition
    stopped."""

    blocked_seconds_max: float = BLOCKED_SECONDS_MAX
    """Seconds that a flush, an append or `wait_until_applied` waits for a partition whose next
    transaction cannot be applied, before it ends with PartitionBlockedError. Attempts are at most
    10 s apart, and the limit is checked after each."""

    ahead_seconds_max: float = CLIENT_AHEAD_SECONDS
    """A server may report that the application has applied more than the log holds because it has
    lost the partition without knowing. It is believed only after it has reported so for this many
    seconds."""

    keeps_client_id: bool = False
    """Whether the client ends with ClientClosedError, rather than take another client ID, when the
    coordinator was set back and may have given its ID to another client, too."""

    name: str = ""
    """The client's name for operators, such as `"orders"`; see docs/operating/consumers.md.
    `open_client` gives a client without one the file name of its program. A name proves nothing and
    need not be unique."""

    instance: str = ""
    """The word that tells several clients of one name apart; `open_client` takes the host name and
    the process ID."""

    program: str = ""
    """The program that runs the client; `open_client` takes the file name of its program."""

    is_consumer: bool = False
    """Whether the cluster keeps, under `name`, how far this client has applied each partition, so
    that it is known while no client of that name runs."""

    listener: LifecycleListener | None = None
    """Is told when servers are connected and lost, and partitions mounted and unmounted."""

    def __post_init__(self) -> None:
        try:
            policy = OnApplyFailure(self.on_apply_failure)
        except ValueError:
            raise ConfigurationError(
                f"on_apply_failure is {self.on_apply_failure!r}; expected"
                f" {', '.join(OnApplyFailure)}"
            ) from None
        object.__setattr__(self, "on_apply_failure", policy)
        self._check("apply_attempts_max", 1, 1_000_000)
        self._check("max_concurrent_transactions", 1, TRANSACTIONS_PENDING_LIMIT)
        self._check("retry_threads", 0, WORKER_THREADS_MAX)
        for name in (
            "mount_seconds_max",
            "registration_seconds_max",
            "long_wait_seconds",
            "close_seconds_max",
            "connection_seconds_max",
            "reconnect_seconds_max",
            "operation_seconds_max",
            "blocked_seconds_max",
            "ahead_seconds_max",
        ):
            self._check(name, 0.001, 86_400.0)
        self._check("refresh_seconds", 0.0, 86_400.0)
        for name in ("heartbeat_interval_seconds", "heartbeat_timeout_seconds"):
            if getattr(self, name) is not None:
                self._check(name, 0.001, 86_400.0)
        self._check("protocol_version_max", CLIENT_CODEC.versions[0], CLIENT_CODEC.versions[-1])
        if self.is_consumer and not self.name:
            raise ConfigurationError("is_consumer needs a name, under which its marks are kept")
        if self.label is not None:
            check_label(self.label)

    @property
    def label(self) -> ClientLabel | None:
        """Return what the client calls itself; None without a name."""
        if not self.name:
            return None
        return ClientLabel(self.name, self.instance, self.program, is_consumer=self.is_consumer)

    @property
    def connections(self) -> ConnectionSettings:
        """Return the settings of the client's connections."""
        return ConnectionSettings(
            codec=CLIENT_CODEC.up_to(self.protocol_version_max),
            heartbeat_interval_seconds=self.heartbeat_interval_seconds,
            heartbeat_timeout_seconds=self.heartbeat_timeout_seconds,
            label=self.label,
        )

    def _check(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            raise ConfigurationError(f"{name} is {value}; expected {low} to {high}")


def options_from(settings: dict[str, object]) -> ClientOptions:
    """Return the options of a call's keyword arguments. Raises ConfigurationError: an unknown
    option, or a value out of range."""
    unknown = sorted(settings.keys() - ClientOptions.__dataclass_fields__.keys())
    if unknown:
        raise ConfigurationError(
            f"unknown option {unknown[0]!r}; expected one of"
            f" {', '.join(ClientOptions.__dataclass_fields__)}"
        )
    return ClientOptions(**settings)  # type: ignore[arg-type]
