"""The client of a Django process: opened at the first use, anew after a fork, closed at the exit.

Owns when that happens, and the reading of the setting `WALTZ`. A server such as gunicorn may import
the project before it forks its workers: a client that the parent has opened stays the parent's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.conf import settings
from django.utils.module_loading import import_string

import waltz
from waltz.errors import (
    ConfigurationError,
    NoNodeError,
    UnavailableError,
    WaltzError,
)

logger = logging.getLogger(__name__)

OPENING_SECONDS_MAX: Final = 5.0
"""Seconds that opening the client waits for the cluster, if the options do not say."""

REOPEN_SECONDS: Final = 1.0
"""Seconds after a failure to open within which callers get that failure: each of them would wait
for a cluster that is away."""

KEYS: Final = ("CLUSTER", "CALLBACKS", "MARKS", "OPTIONS", "TOKEN_WAIT_SECONDS")


@dataclass(frozen=True, slots=True)
class WaltzSettings:
    """The setting `WALTZ`, checked."""

    cluster: str
    callbacks: str = "waltz.NoCallbacks"
    marks: str = "default"
    token_wait_seconds: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


def settings_of_waltz() -> WaltzSettings:
    """Return the project's setting `WALTZ`. Raises ConfigurationError."""
    found = getattr(settings, "WALTZ", None)
    if not isinstance(found, dict) or "CLUSTER" not in found:
        raise ConfigurationError(
            "the setting WALTZ is missing or has no CLUSTER; expected a dictionary such as"
            ' WALTZ = {"CLUSTER": "127.0.0.1:7100"}'
        )
    unknown = sorted(found.keys() - set(KEYS))
    if unknown:
        raise ConfigurationError(
            f"the setting WALTZ has the unknown key {unknown[0]!r}; expected {', '.join(KEYS)}"
        )
    alias = found.get("MARKS", "default")
    if alias not in settings.DATABASES:
        raise ConfigurationError(
            f"the setting WALTZ names the database {alias!r} in MARKS; DATABASES has"
            f" {', '.join(settings.DATABASES)}"
        )
    if not settings.DATABASES[alias].get("AUTOCOMMIT", True):
        raise ConfigurationError(
            f"the database {alias!r}, which MARKS of the setting WALTZ names, has AUTOCOMMIT False;"
            " Waltz needs True: without it a thread sees no mark that moves after its first look"
        )
    return WaltzSettings(**{name.lower(): value for name, value in found.items()})


def open_by_settings() -> waltz.WaltzClient:
    """Open a client as the settings say. Raises as `client`."""
    wanted = settings_of_waltz()
    options = {"connection_seconds_max": OPENING_SECONDS_MAX, **wanted.options}
    return waltz.open_client(wanted.cluster, import_string(wanted.callbacks)(), **options)


class ProcessClient:
    """A client per process; any thread may ask."""

    def __init__(self, open_client: Callable[[], waltz.WaltzClient]) -> None:
        self._open_client = open_client
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Begin anew. In a forked process the lock may be held by a thread that is not there."""
        self._lock = threading.Lock()
        self._client: waltz.WaltzClient | None = None
        self._failure: WaltzError | None = None
        self._failed_at = 0.0

    def client(self) -> waltz.WaltzClient:
        """See `waltz.ext.django.client`."""
        found = self._client
        if found is not None and not found.is_closed:
            return found
        if not self._lock.acquire(timeout=OPENING_SECONDS_MAX):
            raise UnavailableError(
                f"another thread has been opening the client for {OPENING_SECONDS_MAX} s"
            )
        try:
            return self._opened()
        finally:
            self._lock.release()

    def _opened(self) -> waltz.WaltzClient:
        found = self._client
        if found is not None:
            if not found.is_closed:
                return found
            logger.warning("client_replaced error=%r", found.engine.error)
            self._client = None
            found.close()  # it has a thread as yet
        failure = self._failure
        if failure is not None and time.monotonic() < self._failed_at + REOPEN_SECONDS:
            raise UnavailableError(f"the client could not be opened just now: {failure}")
        try:
            self._client = self._open_client()
        except (UnavailableError, NoNodeError) as error:
            self._failure, self._failed_at = error, time.monotonic()
            raise UnavailableError(f"the client could not be opened: {error}") from error
        self._failure = None
        return self._client

    def close(self) -> None:
        """See `waltz.ext.django.close`."""
        with self._lock:
            found, self._client = self._client, None
        if found is not None:
            found.close()


PROCESS: Final = ProcessClient(open_by_settings)
