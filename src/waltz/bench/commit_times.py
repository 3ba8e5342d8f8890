"""Commit times of transactions, noted by a real server: for measurements only.

The product does not report them. Where the hook (`hook.py`) calls `install`, a server writes down
each batch that its store commits, at the moment when the store reports it, before locks, caches and
feeds have moved. At that moment the answers of a majority have arrived; their syncs ended one
answer's travel time earlier.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from waltz.bench.hook import variable
from waltz.errors import WaltzError

if TYPE_CHECKING:
    from waltz.store.events import StoreEvent

ENVIRONMENT: Final = variable(__name__)
"""Names the file."""

NOTE: Final = struct.Struct("=3q")
"""A partition, the last transaction of a batch, and when: nanoseconds of the monotonic clock, which
all processes of a machine share."""


def install() -> None:
    """Have this process note its commits if it is a server."""
    if ENVIRONMENT in os.environ and "server" in sys.orig_argv:
        note_commits(Path(os.environ[ENVIRONMENT]))


def note_commits(path: Path) -> None:
    """Have all stores of this process note their commits in the file, from now on."""
    from waltz.store.events import Committed
    from waltz.store.store_partition_shell import StorePartition

    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    begin = StorePartition.__init__

    def begin_noting(store: StorePartition, *given: Any, **options: Any) -> None:
        on_event = options.pop("on_event")

        def note(event: StoreEvent) -> None:
            if type(event) is Committed:
                now, last = time.monotonic_ns(), event.batch.last_transaction_id
                os.write(descriptor, NOTE.pack(store.partition_id, last, now))
            on_event(event)

        begin(store, *given, on_event=note, **options)

    StorePartition.__init__ = begin_noting  # type: ignore[assignment, method-assign]


def read_commits(path: Path) -> NDArray[np.int64]:
    """Return everything noted so far, in order: a row of the three figures of `NOTE` each."""
    return np.fromfile(path, np.int64).reshape(-1, 3)


def committed_at(
    commits: NDArray[np.int64],
    partition_ids: NDArray[np.int64],
    transaction_ids: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the commit time of each of these transactions.

    Raises WaltzError: nothing was noted for one of them.
    """
    found = np.zeros(len(transaction_ids), np.int64)
    for partition_id in np.unique(partition_ids).tolist():
        noted = commits[commits[:, 0] == partition_id]
        places = np.flatnonzero(partition_ids == partition_id)
        numbers = np.searchsorted(noted[:, 1], transaction_ids[places])  # commits come in order
        if (numbers == len(noted)).any():
            raise WaltzError(
                "the server's commit times lack a transaction that was written to partition"
                f" {partition_id}"
            )
        found[places] = noted[numbers, 2]
    return found
