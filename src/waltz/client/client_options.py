"""What may be set about a client, with defaults."""

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
from waltz.wire.client_protocol import CLIENT_CODEC

TRANSACTIONS_PENDING_MAX: Final = 5
"""client.maxConcurrentTransactions: unfinished appends per partition; further submits wait."""

REGISTRATION_SECONDS_MAX: Final = 10.0
"""How long a submit waits for room before the partition is flushed."""

RETRY_THREADS: Final = 1
"""client.numTransactionRetryThreads."""

APPLY_ATTEMPTS_MAX: Final = 5
"""After which a transaction is parked or its partition stopped, if that is the policy."""

BLOCKED_SECONDS_MAX: Final = 10.0
"""How long a flush waits for a partition whose next transaction cannot be applied."""

TRANSACTIONS_PENDING_LIMIT: Final = 100_000
"""The most that may be asked for as client.maxConcurrentTransactions."""

OPERATION_SECONDS_MAX: Final = 60.0
"""How long a call that reads waits for a server, over all its attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Raises ConfigurationError: a value out of range; the message names it."""

    max_concurrent_transactions: int = TRANSACTIONS_PENDING_MAX
    """Transactions per partition between their submit and their verdict; more submits wait."""

    retry_threads: int = RETRY_THREADS
    """How many failed contexts are executed again at a time; 0: none is, they end as failed."""

    mount_seconds_max: float = MOUNT_SECONDS_MAX
    """How long a submit waits for its partition to have a server."""

    registration_seconds_max: float = REGISTRATION_SECONDS_MAX
    """How long a submit waits for room before the partition is flushed."""

    long_wait_seconds: float = LONG_WAIT_SECONDS
    """After how long without another append the outcome of the last ones is asked for."""

    close_seconds_max: float = CLIENT_CLOSE_SECONDS
    """How long closing waits for callbacks that are running."""

    heartbeat_interval_seconds: float | None = None
    """Between two signs of life on a connection; None: a third of its server's idle time-out, which
    it never exceeds."""

    heartbeat_timeout_seconds: float | None = None
    """After how long without any answer to one its server is taken for dead; None: twice the
    interval."""

    protocol_version_max: int = CLIENT_CODEC.versions[-1]
    """The latest version of the client protocol that is offered to servers."""

    partitions: Collection[int] | None = None
    """The partitions to follow and to write to at first, which `set_partitions` may change; None
    for all, for good."""

    root: str = DEFAULT_ROOT
    """Where the cluster is in the coordinator's tree."""

    servers: Sequence[Address] = ()
    """Servers that tell what the cluster is; empty: the coordinator does. An address `waltz://…`
    sets this."""

    connection_seconds_max: float = CONNECTION_SECONDS_MAX
    """With `servers`: how long opening waits until one of them has answered."""

    reconnect_seconds_max: float = RECONNECT_SECONDS_MAX
    """The longest pause between two attempts to reach a server that is down."""

    refresh_seconds: float = REFRESH_SECONDS
    """With `servers`: between two looks at a server without a connection, its name resolved anew;
    0 for never."""

    operation_seconds_max: float = OPERATION_SECONDS_MAX
    """How long a call that reads waits, over all its attempts, unless it says otherwise."""

    retry_policy: RetryPolicy = field(default_factory=RetryReads)
    """Whether an operation whose connection was lost is repeated."""

    on_apply_failure: OnApplyFailure = OnApplyFailure.WAIT
    """What becomes of a transaction that the application cannot apply; `"wait"`, `"park"` or
    `"stop"` will do."""

    apply_attempts_max: int = APPLY_ATTEMPTS_MAX
    """With `park` and `stop`: after how many attempts that transaction is parked or its partition
    stopped."""

    blocked_seconds_max: float = BLOCKED_SECONDS_MAX
    """How long a flush, an append or `wait_until_applied` waits for a partition whose next
    transaction cannot be applied, before it ends with PartitionBlockedError. Attempts fail at most
    10 s apart, and it is looked at after each."""

    ahead_seconds_max: float = CLIENT_AHEAD_SECONDS
    """How long a server has to say that the application has applied more than the log holds before
    it is believed: it may have lost the partition without knowing."""

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

    @property
    def connections(self) -> ConnectionSettings:
        """What its connections are to be like."""
        return ConnectionSettings(
            codec=CLIENT_CODEC.up_to(self.protocol_version_max),
            heartbeat_interval_seconds=self.heartbeat_interval_seconds,
            heartbeat_timeout_seconds=self.heartbeat_timeout_seconds,
        )

    def _check(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            raise ConfigurationError(f"{name} is {value}; expected {low} to {high}")


def options_from(settings: dict[str, object]) -> ClientOptions:
    """Raises ConfigurationError: an unknown option, or a value out of range."""
    unknown = sorted(settings.keys() - ClientOptions.__dataclass_fields__.keys())
    if unknown:
        raise ConfigurationError(
            f"unknown option {unknown[0]!r}; expected one of"
            f" {', '.join(ClientOptions.__dataclass_fields__)}"
        )
    return ClientOptions(**settings)  # type: ignore[arg-type]
