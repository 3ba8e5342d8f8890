"""Bounds of the product, lowered for a run, so that short runs reach them.

Owns which bounds may be changed, and for how long. A run of a few seconds never reaches a bound of
ten thousand; with a bound of three the same code stops, splits, forgets, catches up and continues
in every run. No promise depends on any of these numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from waltz.client.partitions.client_partition import ClientPartition
from waltz.server.appends.lock_table import LockTable
from waltz.server.clients.contexts import Contexts
from waltz.store.session_keeper import SessionKeeper
from waltz.store.store_partition_shell import StorePartition
from waltz.wire.retained import Retained

KNOBS: Final[Mapping[str, tuple[float, ...]]] = {
    # Batches
    "BATCH_RECORDS_MAX": (1, 3, 20),
    "BATCH_BYTES_MAX": (1_000, 30_000),
    "BATCHES_IN_FLIGHT_MAX": (1, 2),
    "CATCH_UP_RECORDS_MAX": (1, 5),
    "CATCH_UP_BYTES_MAX": (1_000, 30_000),
    "RECENT_BATCH_BYTES_MAX": (1, 2_000),
    "RECORD_LIST_RECORDS_MAX": (2, 7),
    "RECORD_LIST_BYTES_MAX": (500, 20_000),
    "CHECKPOINT_TRANSACTIONS": (5, 30),
    # Storage node
    "STORAGE_MAILBOX_REQUESTS_MAX": (1, 3),
    "DRAIN_BYTES_MAX": (1_000, 30_000),
    "OPEN_CHECK_RECORDS": (1, 5),
    "SCRUB_START_SECONDS": (0.1, 5.0),
    # Server
    "PENDING_APPENDS_MAX": (2, 10),
    "PENDING_APPEND_BYTES_MAX": (5_000, 100_000),
    "PARTITION_SHARE_BYTES": (1, 2_000),
    "CONNECTION_BACKLOG_BYTES_MAX": (1_000, 50_000),
    "FEED_FETCH_MIN": (1, 5),
    "FEED_RUN_RECORDS_MAX": (1, 4),
    "FEED_RUNS_PER_STEP_MAX": (1, 2),
    "FEED_CACHE_BYTES": (1_000, 30_000),
    "READ_AHEAD_RECORDS": (1, 5),
    "READS_IN_FLIGHT_MAX": (1, 2),
    "SERVER_MAILBOX_EVENTS_MAX": (1, 5),
    "LOCK_TABLE_SLOTS": (16, 300),
    # Network
    "READ_BYTES_MAX": (100, 4_096),
    "WRITE_BUFFER_BYTES_HIGH": (2_000, 50_000),
    "WRITE_BUFFER_BYTES_LOW": (1_000,),
    # Client
    "APPLY_TRANSACTIONS_MAX": (1, 3),
    "FEED_BUFFER_TRANSACTIONS_MAX": (2, 10),
    "DATA_REQUESTS_IN_FLIGHT_MAX": (1, 5),
    "CLIENT_MAILBOX_EVENTS_MAX": (1, 5),
    "RETRIES_PER_CALL_MAX": (1, 3),
    "READER_ROWS_MAX": (1, 5),
    "READER_FETCH_ROWS_MAX": (1, 5),
    "READER_FETCHES_IN_FLIGHT_MAX": (1, 2),
    # Repair
    "REPAIR_BYTES_MAX": (200, 5_000),
    "REPAIR_LOOK_SECONDS": (0.5, 30.0),
    "DAMAGED_RANGES_MAX": (1, 2),
    # Logical connections
    "RETAINED_BYTES_MAX": (300, 3_000),
    "RETAINED_WRITES_MAX": (3, 20),
    "ACKNOWLEDGE_BYTES": (100, 3_000),
    "BROKEN_CONNECTIONS_MAX": (1, 3),
    "BROKEN_BYTES_MAX": (1_000,),
    "CONNECTION_RESTORE_SECONDS": (0.2, 3.0),
    "IDLE_SECONDS_MAX": (1.0, 5.0),
    # Rows
    "BULK_BATCH_ROWS_MAX": (1, 3),
    "BULK_BATCH_BYTES_MAX": (500, 20_000),
    "BULK_ROWS_IN_FLIGHT_MAX": (1, 6),
    "BULK_BYTES_IN_FLIGHT_MAX": (500, 20_000),
    "BULK_LOCKED_ROWS_IN_FLIGHT_MAX": (4, 8),
    "CLIENT_BATCHES_IN_FLIGHT_MAX": (1, 5),
    "READ_AHEAD_HEADERS_MAX": (1, 20),
    "HEADER_READ_BYTES": (1, 500),
    "SEQUENCE_NUMBERS_PER_CLIENT_ID": (20, 60),
    # Outcomes
    "OUTCOME_RECORDS_MAX": (1, 5),
    "OUTCOME_RECORDS_PER_STEP_MAX": (1, 5),
    # Locks
    "LOCK_TABLE_SLOTS_PER_CLAIM": (1, 5_000),
}
"""The values that each bound may have instead."""

ARGUMENTS: Final[Mapping[str, tuple[tuple[Callable[..., Any], str], ...]]] = {
    "CHECKPOINT_TRANSACTIONS": (
        (StorePartition.__init__, "checkpoint_transactions"),
        (SessionKeeper.__init__, "checkpoint_transactions"),
    ),
    "LOCK_TABLE_SLOTS": ((LockTable.__init__, "slot_count"), (LockTable.__init__, "slots_max")),
    "APPLY_TRANSACTIONS_MAX": ((ClientPartition.__init__, "apply_count_max"),),
    "FEED_BUFFER_TRANSACTIONS_MAX": ((ClientPartition.__init__, "buffer_count_max"),),
    "RETAINED_BYTES_MAX": ((Retained.__init__, "bytes_max"),),
    "RETAINED_WRITES_MAX": ((Retained.__init__, "writes_max"),),
    "ACKNOWLEDGE_BYTES": ((Retained.__init__, "acknowledge_bytes"),),
    "BROKEN_CONNECTIONS_MAX": ((Contexts.__init__, "broken_max"),),
    "BROKEN_BYTES_MAX": ((Contexts.__init__, "broken_bytes_max"),),
}
"""Arguments whose default is the bound."""

TURNED_SHARE: Final = 0.25
"""Share of the bounds that are changed, in a run that changes any; every second run does."""


def draw_knobs(random: Random) -> dict[str, float]:
    """Draw the bounds of a run that are not the usual ones; often none."""
    if random.random() < 0.5:
        return {}
    return {
        name: random.choice(values)
        for name, values in KNOBS.items()
        if random.random() < TURNED_SHARE
    }


@contextmanager
def turned(knobs: Mapping[str, float]) -> Iterator[None]:
    """Let these bounds hold, wherever they have been imported to."""
    undo: list[Callable[[], None]] = []
    modules = _modules() if knobs else ()
    try:
        for name, value in knobs.items():
            users = [module for module in modules if name in module.__dict__]
            assert users or name in ARGUMENTS, f"no module knows {name}"
            for module in users:
                undo.append(_setter(module, name, getattr(module, name)))
                setattr(module, name, value)
            for function, argument in ARGUMENTS.get(name, ()):
                undo.append(_default_setter(function, argument))
                _set_default(function, argument, value)
        yield
    finally:
        for each in reversed(undo):
            each()


def _modules() -> list[Any]:
    """Return all modules that may use a bound, without those that judge what peers send."""
    return [
        module
        for path, module in list(sys.modules.items())
        if path.startswith("waltz.")
        and not path.startswith("waltz.wire.")
        and hasattr(module, "__dict__")
    ]


def _setter(module: Any, name: str, value: float) -> Callable[[], None]:
    return lambda: setattr(module, name, value)


def _default_setter(function: Callable[..., Any], argument: str) -> Callable[[], None]:
    value = default_of(function, argument)
    return lambda: _set_default(function, argument, value)


def default_of(function: Any, argument: str) -> Any:
    """Return the default of an argument of `function`, which has one."""
    if argument in (function.__kwdefaults__ or {}):
        return function.__kwdefaults__[argument]
    return function.__defaults__[_position(function, argument)]


def _set_default(function: Any, argument: str, value: float) -> None:
    if argument in (function.__kwdefaults__ or {}):
        function.__kwdefaults__[argument] = value
        return
    defaults = list(function.__defaults__)
    defaults[_position(function, argument)] = value
    function.__defaults__ = tuple(defaults)


def _position(function: Any, argument: str) -> int:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    return int(names.index(argument)) - len(names)
