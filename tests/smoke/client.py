"""One client of a smoke run, as a process: `python -m tests.smoke.client`.

It submits its share of contexts, a thread per partition, and follows all partitions; what it does
and sees goes into journals. It prints its progress as JSON lines. On standard input it is told to
`stop` submitting, and then, as a JSON list, up to which transaction it has to see each partition.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import waltz
from tests.smoke.journal import Event, Journal, Step, verdict_number
from waltz.cli.nodes import set_up_logging
from waltz.sim.judges.history import Fed, Verdict
from waltz.sim.judges.payload import Kind, Payload
from waltz.types import NOTHING

KEYS: Final = 250
"""Locks per partition."""

PENDING: Final = 32
"""Contexts of one client in one partition that have not ended."""

REPORT_SECONDS: Final = 0.25
MOUNT_SECONDS: Final = 3600.0
"""However long a partition is away, nothing is given up."""

HASTE: Final = 0.02
HASTE_SECONDS: Final = (0.05, 3.0)
"""The share of contexts that have little time, and how much."""


class Progress:
    """Counts of many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts = {"submitted": 0, "ended": 0, "committed": 0, "refusals": 0, "fed": 0}

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self.counts[name] += count

    @property
    def pending(self) -> int:
        with self._lock:
            return self.counts["submitted"] - self.counts["ended"]


class Application(waltz.WaltzClientCallbacks):
    """Counts keys up, and writes down everything that it is handed."""

    prefetch = True

    def __init__(self, journals: Sequence[Journal], progress: Progress, *, forgetful: bool) -> None:
        """`forgetful`: one transaction is not applied, as a bug would have it."""
        self.journals = journals
        self._forgetful = forgetful
        self.progress = progress
        self.marks = [NOTHING] * len(journals)
        self.values: list[dict[int, int]] = [{} for _ in journals]

    def get_client_high_water_mark(self, partition_id: waltz.PartitionId) -> waltz.TransactionId:
        return self.marks[partition_id]

    def apply_transactions(self, transactions: Sequence[waltz.Transaction]) -> None:
        partition_id = transactions[0].partition_id
        values = self.values[partition_id]
        records = []
        for each in transactions:
            data = each.data
            records.append(Fed(each.transaction_id, each.request_id, each.header, data))
            payload = Payload.decode(data)
            if payload is not None and payload.kind is Kind.COUNT:
                values.update(payload.entries)
        if self._forgetful:
            self._forgetful = False
            records.pop()
        self.journals[partition_id].hand_over(records)
        self.marks[partition_id] = transactions[-1].transaction_id
        self.progress.add(fed=len(records))

    def uncaught_exception(
        self,
        partition_id: waltz.PartitionId,
        transaction_id: waltz.TransactionId,
        error: Exception,
    ) -> None:
        print(f"partition {partition_id}, transaction {transaction_id}: {error!r}", file=sys.stderr)


class Intent(waltz.TransactionContext):
    """One transaction, which writes down every attempt and how it ends."""

    def __init__(self, application: Application, number: int, partition: int, random: Random):
        super().__init__()
        self._application = application
        self._journal = application.journals[partition]
        self._number = number
        self._partition = partition
        self._attempts = 0
        self._kind = random.choices((Kind.NOTE, Kind.COUNT), (6, 4))[0]
        self._key = random.randrange(KEYS)
        self._other = random.choice((None, random.randrange(KEYS)))
        self._header = random.randrange(-(2**31), 2**31)
        self._padding = random.randbytes(random.randrange(120))
        if random.random() < HASTE:
            self.timeout_seconds = random.uniform(*HASTE_SECONDS)

    def begin(self) -> None:
        self._journal.note(Event(Step.SUBMITTED, self._number, time.monotonic_ns()))
        self._application.progress.add(submitted=1)

    def partition_id(self, partition_count: int) -> int:
        return self._partition

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        application, key = self._application, self._key
        self._attempts += 1
        mark = application.marks[self._partition]
        entries: tuple[tuple[int, int], ...] = ()
        write_locks: tuple[int, ...] = ()
        read_locks: tuple[int, ...] = ()
        if self._kind is Kind.COUNT:
            write_locks = (key,)
            entries = ((key, application.values[self._partition].get(key, 0) + 1),)
        if self._other is not None and self._other != key:
            read_locks = (self._other,)
        data = Payload(
            self._number, self._attempts, self._kind, mark, write_locks, read_locks, (), entries,
            self._padding,
        ).encode()  # fmt: skip
        self._journal.note(
            Event(Step.ATTEMPTED, self._number, time.monotonic_ns(), self._header, data)
        )
        builder.set_header(self._header)
        builder.set_data(data)
        builder.set_write_locks([waltz.PartitionLocalLock("key", each) for each in write_locks])
        builder.set_read_locks([waltz.PartitionLocalLock("key", each) for each in read_locks])
        return True

    def on_lock_failure(self, transaction_id: waltz.TransactionId) -> None:
        self._application.progress.add(refusals=1)

    def on_completion(self, result: bool) -> None:
        self._end(Verdict.COMMITTED if result else Verdict.REFUSED)

    def on_expiration(self) -> None:
        self._end(Verdict.EXPIRED)

    def on_exception(self, error: Exception) -> None:
        print(f"context {self._number}: {error!r}", file=sys.stderr, flush=True)
        may_be_written = not isinstance(error, waltz.WaltzError) or error.may_be_written
        self._end(Verdict.FAILED if may_be_written else Verdict.UNWRITTEN)

    def _end(self, verdict: Verdict) -> None:
        self._journal.note(
            Event(Step.ENDED, self._number, time.monotonic_ns(), verdict_number(verdict))
        )
        self._application.progress.add(ended=1, committed=verdict is Verdict.COMMITTED)


class Submitters:
    """A thread per partition; those whose partition has a server take what is left."""

    def __init__(
        self, client: waltz.WaltzClient, application: Application, numbers: range, seed: str
    ) -> None:
        self._client = client
        self._application = application
        self._stopping = threading.Event()
        self._numbers = iter(numbers)
        self._threads = [
            threading.Thread(target=self._submit, args=(number, Random(f"{seed} {number}")))
            for number in range(client.partition_count)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def are_busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _submit(self, partition: int, random: Random) -> None:
        # `next` of a range's iterator is one step of the interpreter: two threads get two numbers.
        while not self._stopping.is_set() and (number := next(self._numbers, None)) is not None:
            intent = Intent(self._application, number, partition, random)
            intent.begin()
            with suppress(waltz.WaltzError):  # the context has been told
                self._client.submit(intent)


def say(progress: Progress, **more: object) -> None:
    print(json.dumps({**progress.counts, **more}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.smoke.client", description=__doc__)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--first", required=True, type=int, help="number of the first context")
    parser.add_argument("--step", required=True, type=int, help="to the next one")
    parser.add_argument("--count", required=True, type=int)
    parser.add_argument("--partitions", required=True, type=int)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--journals", required=True, type=Path)
    parser.add_argument("--forgetful", action="store_true", help="do not apply one transaction")
    given = parser.parse_args()
    set_up_logging()
    numbers = range(given.first, given.first + given.step * given.count, given.step)
    journals = [Journal(given.journals, given.name, each) for each in range(given.partitions)]
    progress = Progress()
    application = Application(journals, progress, forgetful=given.forgetful)
    with waltz.open_client(
        given.cluster,
        application,
        max_concurrent_transactions=PENDING,
        retry_threads=2,
        mount_seconds_max=MOUNT_SECONDS,
    ) as client:
        submitters = Submitters(client, application, numbers, f"{given.seed} {given.name}")
        ended = threading.Event()

        def report() -> None:
            while not ended.wait(REPORT_SECONDS):
                say(progress, submitting=submitters.are_busy)

        threading.Thread(target=report, daemon=True).start()
        marks = listen(submitters)
        while any(
            client.client_high_water_mark(number) < mark for number, mark in enumerate(marks)
        ):
            time.sleep(REPORT_SECONDS / 10)
        ended.set()
    for journal in journals:
        journal.close()
    say(progress, checksums=[journal.checksum for journal in journals], done=True)
    return 0


def listen(submitters: Submitters) -> list[int]:
    """Return the marks that standard input says; it also says when to stop."""
    for line in sys.stdin:
        if line == "stop\n":
            submitters.stop()
        else:
            marks: list[int] = json.loads(line)
            return marks
    sys.exit("nobody wants the result any more")


if __name__ == "__main__":
    sys.exit(main())
