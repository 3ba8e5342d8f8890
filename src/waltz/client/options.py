"""What may be set about a client, with defaults."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from waltz.cluster.paths import DEFAULT_ROOT
from waltz.errors import ConfigurationError
from waltz.limits import (
    CLIENT_CLOSE_SECONDS,
    LONG_WAIT_SECONDS,
    MOUNT_SECONDS_MAX,
    REGISTRATION_SECONDS_MAX,
    RETRY_THREADS,
    TRANSACTIONS_PENDING_LIMIT,
    TRANSACTIONS_PENDING_MAX,
    WORKER_THREADS_MAX,
)


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

    partitions: Collection[int] | None = None
    """The partitions to follow and to write to at first, which `set_partitions` may change; None
    for all, for good."""

    root: str = DEFAULT_ROOT
    """Where the cluster is in the coordinator's tree."""

    def __post_init__(self) -> None:
        self._check("max_concurrent_transactions", 1, TRANSACTIONS_PENDING_LIMIT)
        self._check("retry_threads", 0, WORKER_THREADS_MAX)
        for name in (
            "mount_seconds_max",
            "registration_seconds_max",
            "long_wait_seconds",
            "close_seconds_max",
        ):
            self._check(name, 0.001, 86_400.0)

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
