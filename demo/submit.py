"""One of the processes that write flights to the log, and apply the flights of all of them.

It takes every n-th flight, so that the legs of one aircraft come from different processes and the
aircraft's lock really decides. It prints its progress, a line of JSON at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine

from demo.database import Legs, apply_flights, open_database
from demo.flights import Flight, aircraft_id, flights_file, read_flights, transaction_data
from waltz import (
    PartitionId,
    PartitionLocalLock,
    SqlCallbacks,
    Transaction,
    TransactionBuilder,
    TransactionContext,
    TransactionId,
    WaltzClient,
    open_client,
    open_reader,
)

REPORT_SECONDS: Final = 0.2
TRANSACTIONS_PENDING: Final = 16
"""Unfinished transactions per partition and process; with more of them more legs of an aircraft are
under way at once, and more are refused."""


class Progress:
    """The counts so far; callbacks of many threads count here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"submitted": 0, "completed": 0, "applied": 0, "executed": 0, "conflicts": 0}
        self._completed_at = time.monotonic()
        self._longest_gap_seconds = 0.0
        self._failure: str | None = None
        self._changed = threading.Condition(self._lock)

    def count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1
            if what == "applied":
                self._changed.notify_all()

    def complete(self) -> None:
        with self._lock:
            self._counts["completed"] += 1
            self._longest_gap_seconds = max(self._longest_gap_seconds, self._gap())

    def fail(self, reason: str) -> None:
        """Remember the first `reason` why a flight cannot be written; the process cannot
        continue."""
        with self._lock:
            self._failure = self._failure or reason
            self._changed.notify_all()

    @property
    def failure(self) -> str | None:
        return self._failure

    def wait_until_applied(self, timeout_seconds: float) -> bool:
        """Return whether all that was submitted has been applied, or something failed."""
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    self._failure is not None
                    or self._counts["applied"] == self._counts["submitted"]
                ),
                timeout_seconds,
            )

    def line(self) -> dict[str, object]:
        """Return the counts, and the longest time without a completion since the last call."""
        with self._lock:
            unfinished = self._counts["completed"] < self._counts["submitted"]
            now = time.monotonic()
            longest = max(
                self._longest_gap_seconds, now - self._completed_at if unfinished else 0.0
            )
            self._longest_gap_seconds = 0.0
            return {"at": now, **self._counts, "longest_gap_seconds": longest}

    def _gap(self) -> float:
        now = time.monotonic()
        gap, self._completed_at = now - self._completed_at, now
        return gap


class FlightContext(TransactionContext):
    """One flight on its way to the log: the next leg of its aircraft."""

    def __init__(self, flight: Flight, legs: Legs, progress: Progress) -> None:
        self._flight = flight
        self._legs = legs
        self._progress = progress
        self._aircraft_id = aircraft_id(flight.aircraft)

    def partition_id(self, partition_count: int) -> int:
        return self._aircraft_id % partition_count

    def execute(self, builder: TransactionBuilder) -> bool:
        # The lock is refused if another leg was written after those that this database has seen, so
        # the next number is right whenever the append is accepted.
        self._progress.count("executed")
        leg = self._legs.last_leg(self._flight.aircraft) + 1
        builder.set_header(self._flight.kind)
        builder.set_data(transaction_data(self._flight, leg))
        builder.set_write_locks([PartitionLocalLock("aircraft", self._aircraft_id)])
        return True

    def on_lock_failure(self, transaction_id: TransactionId) -> None:
        self._progress.count("conflicts")

    def on_completion(self, result: bool) -> None:
        if result:
            self._progress.complete()
        else:
            self._progress.fail(f"flight {self._flight.number}: not written")

    def on_application(self) -> None:
        self._progress.count("applied")

    def on_exception(self, error: Exception) -> None:
        self._progress.fail(f"flight {self._flight.number}: {error!r}")


class FlightCallbacks(SqlCallbacks):
    """Applies flights; leaves to the other processes the partitions that are theirs."""

    def __init__(self, engine: Engine, progress: Progress, partitions: Iterable[int]) -> None:
        super().__init__(engine, preferred_partitions=frozenset(partitions))
        self._outcome = progress

    def apply(self, connection: Connection, transactions: Sequence[Transaction]) -> None:
        apply_flights(connection, transactions)

    def uncaught_exception(
        self, partition_id: PartitionId, transaction_id: TransactionId, error: Exception
    ) -> None:
        self._outcome.fail(f"partition {partition_id}, transaction {transaction_id}: {error!r}")


def parse_share(text: str) -> tuple[int, int]:
    """Return index and count of a share written as "0/4". Raises ValueError."""
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ValueError(f"not a share: {text!r}; expected the form 0/4")
    return int(index), int(count)


@contextmanager
def reporting(progress: Progress) -> Iterator[None]:
    """Print the progress now and then for as long as the block lasts."""
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(REPORT_SECONDS):
            say(progress)

    reporter = threading.Thread(target=report, name="reporter")
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()


def say(progress: Progress, *, done: bool = False) -> None:
    print(json.dumps({**progress.line(), "done": done}), flush=True)


def stopped_by_end_of_input() -> threading.Event:
    """Return an event that is set when standard input ends: the process that started this one wants
    no more."""
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=watch, name="input", daemon=True).start()
    return ended


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m demo.submit", description=__doc__)
    arguments.add_argument("--cluster", required=True, help="the coordinator's host:port")
    arguments.add_argument("--database", required=True, type=Path, help="shared by all processes")
    arguments.add_argument("--share", type=parse_share, default=(0, 1), help='which flights: "0/4"')
    arguments.add_argument("--limit", type=int, help="of the first how many flights")
    given = arguments.parse_args()
    share, share_count = given.share
    flights = read_flights(flights_file(), share=share, share_count=share_count, limit=given.limit)
    with open_reader(given.cluster) as log:
        partitions = range(share, log.partition_count, share_count)
    progress = Progress()
    engine = open_database(given.database)
    callbacks = FlightCallbacks(engine, progress, partitions)
    stopping = stopped_by_end_of_input()
    with open_client(
        given.cluster, callbacks, max_concurrent_transactions=TRANSACTIONS_PENDING
    ) as client:
        with reporting(progress):
            submit_all(client, flights, Legs(engine), progress, stopping)
        say(progress, done=progress.failure is None)
        # The others may still write to the partitions that are applied here.
        while progress.failure is None and not stopping.wait(REPORT_SECONDS):
            pass
    if progress.failure is not None:
        print(progress.failure, file=sys.stderr)
        return 1
    return 0


def submit_all(
    client: WaltzClient,
    flights: Iterable[Flight],
    legs: Legs,
    progress: Progress,
    stopping: threading.Event,
) -> None:
    """Return once every one of `flights` is in the log and in the database, or it must stop."""
    for flight in flights:
        if stopping.is_set() or progress.failure is not None:
            return
        progress.count("submitted")
        client.submit(FlightContext(flight, legs, progress))
    while not stopping.is_set() and not progress.wait_until_applied(REPORT_SECONDS):
        pass


if __name__ == "__main__":
    sys.exit(main())
