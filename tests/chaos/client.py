"""One client of a chaos run, as a process: `python -m tests.chaos.client`.

For each schedule it is told of on standard input, a JSON line, it submits contexts of several kinds
while its connections suffer, waits for every one to end, appends once more to every partition, and
asks what became of everything. What it did and saw it prints as one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import waltz
from waltz.cli.nodes import set_up_logging
from waltz.sim.judges.history import Verdict
from waltz.sim.judges.payload import Kind, Payload

KEYS: Final = 4
"""Locks per partition: few, so that clients meet."""

SUBMIT_SECONDS: Final = 1.0
"""While a schedule's contexts are submitted."""

PLAIN_SHARE: Final = 0.3
HASTE_SHARE: Final = 0.1
HASTE_SECONDS: Final = (0.01, 1.0)
"""Of the contexts, how many are plain appends, and how many have little time, and how much."""

PENDING: Final = 20
PROBE_MARK: Final = b"probe"


class State(waltz.WaltzClientCallbacks):
    """What was applied, and what keys count up to by that."""

    prefetch = True

    def __init__(self, partitions: int) -> None:
        self.marks = [waltz.NOTHING] * partitions
        self.values: list[dict[int, int]] = [{} for _ in range(partitions)]
        self.gaps: list[str] = []
        self.errors: list[str] = []

    def get_client_high_water_mark(self, partition_id: waltz.PartitionId) -> waltz.TransactionId:
        return self.marks[partition_id]

    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        number = transaction.partition_id
        if transaction.transaction_id != self.marks[number] + 1:
            self.gaps.append(
                f"partition {number}: {transaction.transaction_id} after {self.marks[number]}"
            )
        payload = Payload.decode(transaction.data)
        if payload is not None and payload.kind is Kind.COUNT:
            self.values[number].update(payload.entries)
        self.marks[number] = transaction.transaction_id

    def uncaught_exception(
        self,
        partition_id: waltz.PartitionId,
        transaction_id: waltz.TransactionId,
        error: Exception,
    ) -> None:
        self.errors.append(f"partition {partition_id}, transaction {transaction_id}: {error!r}")


class Intent(waltz.TransactionContext):
    """One transaction; writes down every attempt and every ending. Any thread."""

    def __init__(self, state: State, number: int, partition: int, random: Random) -> None:
        super().__init__()
        self._state = state
        self.number = number
        self.partition = partition
        self.written: list[str] = []
        self.requests: list[tuple[waltz.RequestId, int]] = []
        self.endings: list[str] = []
        self.ended = threading.Event()
        self.kind = random.choice((Kind.NOTE, Kind.COUNT))
        self.key = random.randrange(KEYS)
        self.is_plain = random.random() < PLAIN_SHARE
        self.has_locks = random.random() < 0.5
        self.padding = random.randbytes(random.choice((0, 20, 200, random.randrange(20_000))))
        self.place: int | None = None
        if random.random() < HASTE_SHARE:
            self.timeout_seconds = random.uniform(*HASTE_SECONDS)

    def data(self, kind: Kind) -> bytes:
        """Return the data of the next attempt, and write it down."""
        mark = self._state.marks[self.partition]
        locks = (self.key,) if kind is Kind.COUNT else ()
        value = self._state.values[self.partition].get(self.key, 0) + 1
        data = Payload(
            self.number,
            len(self.written) + 1,
            kind,
            mark,
            write_locks=locks,
            read_locks=(self.key,) if kind is Kind.NOTE and self.reads else (),
            entries=((self.key, value),) if kind is Kind.COUNT else (),
            padding=self.padding,
        ).encode()
        self.written.append(data.hex())
        return data

    @property
    def reads(self) -> bool:
        return self.has_locks and not self.is_plain

    def partition_id(self, partition_count: int) -> int:
        return self.partition

    def execute(self, builder: waltz.TransactionBuilder) -> bool:
        if self.request_id is not None:
            self.requests.append((self.request_id, self.executed_at))
        builder.set_data(self.data(self.kind))
        lock = waltz.PartitionLocalLock("key", self.key)
        if self.kind is Kind.COUNT:
            builder.set_write_locks([lock])
        elif self.reads:
            builder.set_read_locks([lock])
        return True

    def on_completion(self, result: bool) -> None:
        self.end(Verdict.COMMITTED if result else Verdict.REFUSED)

    def on_expiration(self) -> None:
        self.end(Verdict.EXPIRED)

    def on_exception(self, error: Exception) -> None:
        self.end(verdict_of(error))

    def end(self, verdict: Verdict) -> None:
        self.endings.append(verdict.name)
        self.ended.set()

    def all_requests(self) -> list[tuple[waltz.RequestId, int]]:
        last = [] if self.request_id is None else [(self.request_id, int(self.executed_at))]
        return [*self.requests, *last]


def verdict_of(error: Exception) -> Verdict:
    if isinstance(error, waltz.OperationTimeoutError):
        return Verdict.EXPIRED
    may_be_written = not isinstance(error, waltz.WaltzError) or error.may_be_written
    return Verdict.FAILED if may_be_written else Verdict.UNWRITTEN


class Task:
    """One schedule's work of one client, as drawn."""

    def __init__(self, state: State, told: dict[str, Any], name: str, partitions: int) -> None:
        random = Random(f"{told['seed']} {told['number']} {name}")
        count = random.randint(10, 40)
        self.intents = [
            Intent(state, told["first"] + place, random.randrange(partitions), random)
            for place in range(count)
        ]
        self.moments = sorted(random.uniform(0.0, SUBMIT_SECONDS) for _ in range(count))
        self.asked_early = [each for each in self.intents if random.random() < 0.2]
        self.of_before = [
            (waltz.RequestId(*request_id), after) for request_id, after in told["of_before"]
        ]
        self.outcomes: list[tuple[Sequence[int], int | None]] = []

    def note(self, request_id: waltz.RequestId, found: int | None) -> None:
        self.outcomes.append((tuple(request_id), found))

    def report(self, state: State, back_at: float) -> dict[str, Any]:
        return {
            "back_at": back_at,
            "gaps": state.gaps,
            "errors": state.errors,
            "outcomes": self.outcomes,
            "contexts": [
                {
                    "number": each.number,
                    "partition": each.partition,
                    "written": each.written,
                    "endings": each.endings,
                    "place": each.place,
                    "requests": each.all_requests(),
                }
                for each in self.intents
            ],
        }


def probe_data() -> bytes:
    return PROBE_MARK


# For threads


def append_blocking(client: waltz.WaltzClient, intent: Intent) -> None:
    try:
        intent.place = client.append(
            intent.partition,
            intent.data(Kind.NOTE),
            timeout_seconds=intent.timeout_seconds,
        )
        intent.end(Verdict.COMMITTED)
    except waltz.WaltzError as error:
        intent.end(verdict_of(error))


def submit_blocking(client: waltz.WaltzClient, intent: Intent) -> None:
    try:
        client.submit(intent)
    except waltz.WaltzError:
        pass  # it was told


def work_with_threads(client: waltz.WaltzClient, task: Task, calm_at: float) -> float:
    """Do the work; return when every partition could be written to again."""
    began = time.monotonic()
    threads = []
    for moment, intent in zip(task.moments, task.intents, strict=True):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        work = append_blocking if intent.is_plain else submit_blocking
        thread = threading.Thread(target=work, args=(client, intent))
        thread.start()
        threads.append(thread)
        if intent in task.asked_early and intent.request_id is not None:
            request_id = intent.request_id
            task.note(request_id, client.outcome(request_id, intent.executed_at))
    wait_until_calm(calm_at)
    for number in range(client.partition_count):
        client.append(number, probe_data())
    back_at = time.monotonic()
    for thread in threads:
        thread.join()
    for intent in task.intents:
        intent.ended.wait()
        for request_id, after in intent.all_requests():
            task.note(request_id, client.outcome(request_id, after))
    for request_id, after in task.of_before:
        task.note(request_id, client.outcome(request_id, after))
    return back_at


def wait_until_calm(calm_at: float) -> None:
    while (left := calm_at - time.monotonic()) > 0:
        time.sleep(left)


# For asyncio


async def submit_async(client: waltz.AsyncWaltzClient, intent: Intent, moment: float) -> None:
    await asyncio.sleep(moment)
    try:
        if intent.is_plain:
            intent.place = await client.append(
                intent.partition,
                intent.data(Kind.NOTE),
                timeout_seconds=intent.timeout_seconds,
            )
            intent.end(Verdict.COMMITTED)
        else:
            await client.submit(intent)
    except waltz.WaltzError as error:
        if intent.is_plain:
            intent.end(verdict_of(error))
    await asyncio.to_thread(intent.ended.wait)


async def ask_early(client: waltz.AsyncWaltzClient, task: Task, moment: float) -> None:
    await asyncio.sleep(moment)
    for intent in task.asked_early:
        if intent.request_id is not None:
            request_id = intent.request_id
            task.note(request_id, await client.outcome(request_id, intent.executed_at))


async def work_with_tasks(client: waltz.AsyncWaltzClient, task: Task, calm_at: float) -> float:
    async with asyncio.TaskGroup() as group:
        for moment, intent in zip(task.moments, task.intents, strict=True):
            group.create_task(submit_async(client, intent, moment))
        group.create_task(ask_early(client, task, SUBMIT_SECONDS / 2))
        await asyncio.sleep(calm_at - time.monotonic())
        for number in range(client.partition_count):
            await client.append(number, probe_data())
        back_at = time.monotonic()
    questions = [each for intent in task.intents for each in intent.all_requests()]
    for request_id, after in [*questions, *task.of_before]:
        task.note(request_id, await client.outcome(request_id, after))
    return back_at


# The process


def say(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)


def tell_task(line: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(line)
    return told


def run_threads(given: argparse.Namespace, options: dict[str, Any]) -> None:
    state = State(given.partitions)
    with waltz.open_client(given.cluster, state, **options) as client:
        say({"ready": True})
        for line in sys.stdin:
            told = tell_task(line)
            task = Task(state, told, given.name, given.partitions)
            back_at = work_with_threads(client, task, told["calm_at"])
            say(task.report(state, back_at))


async def run_tasks(given: argparse.Namespace, options: dict[str, Any]) -> None:
    state = State(given.partitions)
    async with waltz.open_async_client(given.cluster, state, **options) as client:
        say({"ready": True})
        while line := await asyncio.to_thread(sys.stdin.readline):
            told = tell_task(line)
            task = Task(state, told, given.name, given.partitions)
            back_at = await work_with_tasks(client, task, told["calm_at"])
            say(task.report(state, back_at))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.client", description=__doc__)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--partitions", required=True, type=int)
    parser.add_argument("--face", required=True, choices=("threads", "asyncio"))
    parser.add_argument("--beat", type=float, help="seconds between heartbeats, and for an answer")
    given = parser.parse_args()
    set_up_logging()
    options: dict[str, Any] = {
        "max_concurrent_transactions": PENDING,
        "retry_threads": 2,
        "mount_seconds_max": 3600.0,
    }
    if given.beat is not None:
        options["heartbeat_interval_seconds"] = given.beat
        options["heartbeat_timeout_seconds"] = given.beat
    if given.face == "threads":
        run_threads(given, options)
    else:
        asyncio.run(run_tasks(given, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
