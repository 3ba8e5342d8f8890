"""One client of a chaos run, as a process: `python -m tests.chaos.client`.

For each schedule it is told of on standard input, a JSON line, it submits contexts of several kinds
while its connections suffer, waits for every one to end, appends once more to every partition, and
asks what became of everything. What it did and was told is in its journals; when it has come to the
end of a schedule it says so in one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import waltz
from tests.live.application import Application, Intent, Load
from tests.live.journal import Event, Journal, Step, encode_request
from waltz.cli.log_format import set_up_logging

LOAD: Final = Load(
    keys=4,  # few, so that clients meet
    plain=0.3,
    counting=0.5,
    hasty=0.1,
    hasty_seconds=(0.01, 1.0),
    padding=(0, 20, 200, 20_000),
)
SUBMIT_SECONDS: Final = 1.0
"""While a schedule's contexts are submitted."""

PENDING: Final = 20
PROBE: Final = b"probe"


class Task:
    """One schedule's work of one client, as drawn."""

    def __init__(self, application: Application, told: dict[str, Any], name: str) -> None:
        random = Random(f"{told['seed']} {told['number']} {name}")
        self.partitions = len(application.journals)
        self.calm_at: float = told["calm_at"]
        count = random.randint(10, 40)
        self.intents = [
            Intent(application, told["first"] + place, random.randrange(self.partitions), random)
            for place in range(count)
        ]
        self.moments = sorted(random.uniform(0.0, SUBMIT_SECONDS) for _ in range(count))
        self._application = application
        self._asked_early = [each for each in self.intents if random.random() < 0.2]
        self._of_before = [
            (waltz.RequestId(*request_id), after) for request_id, after in told["of_before"]
        ]

    def early_questions(self) -> Iterator[tuple[waltz.RequestId, int]]:
        for intent in self._asked_early:
            if intent.request_id is not None:
                yield intent.request_id, intent.executed_at

    def questions(self) -> Iterator[tuple[waltz.RequestId, int]]:
        """Yield the requests of all attempts, and some of earlier schedules."""
        for intent in self.intents:
            yield from intent.all_requests()
        yield from self._of_before

    def note(self, request_id: waltz.RequestId, found: int | None) -> None:
        """Write down what became of the request, as the client was told."""
        event = Event(Step.ASKED, 0, data=encode_request(request_id, found))
        self._application.journals[request_id.partition_id].note(event)


# For threads


def work_with_threads(client: waltz.WaltzClient, task: Task) -> float:
    """Do the work; return when every partition could be written to again."""
    began = time.monotonic()
    threads = []
    for moment, intent in zip(task.moments, task.intents, strict=True):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        intent.begin()
        threads.append(threading.Thread(target=intent.submit, args=(client,)))
        threads[-1].start()
    for request_id, after in task.early_questions():
        task.note(request_id, client.outcome(request_id, after))
    time.sleep(max(0.0, task.calm_at - time.monotonic()))
    for number in range(task.partitions):
        client.append(number, PROBE)
    back_at = time.monotonic()
    for thread in threads:
        thread.join()
    for intent in task.intents:
        intent.ended.wait()
    for request_id, after in task.questions():
        task.note(request_id, client.outcome(request_id, after))
    return back_at


# For asyncio


async def submit(client: waltz.AsyncWaltzClient, intent: Intent, moment: float) -> None:
    await asyncio.sleep(moment)
    intent.begin()
    await intent.submit_async(client)
    await asyncio.to_thread(intent.ended.wait)


async def ask_early(client: waltz.AsyncWaltzClient, task: Task, moment: float) -> None:
    await asyncio.sleep(moment)
    for request_id, after in task.early_questions():
        task.note(request_id, await client.outcome(request_id, after))


async def work_with_tasks(client: waltz.AsyncWaltzClient, task: Task) -> float:
    async with asyncio.TaskGroup() as group:
        for moment, intent in zip(task.moments, task.intents, strict=True):
            group.create_task(submit(client, intent, moment))
        group.create_task(ask_early(client, task, SUBMIT_SECONDS / 2))
        await asyncio.sleep(task.calm_at - time.monotonic())
        for number in range(task.partitions):
            await client.append(number, PROBE)
        back_at = time.monotonic()
    for request_id, after in task.questions():
        task.note(request_id, await client.outcome(request_id, after))
    return back_at


# The process


def say(application: Application, back_at: float) -> None:
    for journal in application.journals:
        journal.flush()
    print(json.dumps({"back_at": back_at, "complaints": application.complaints}), flush=True)


def run_threads(name: str, cluster: str, application: Application, options: Any) -> None:
    with waltz.open_client(cluster, application, **options) as client:
        print("ready", flush=True)
        for line in sys.stdin:
            task = Task(application, json.loads(line), name)
            say(application, work_with_threads(client, task))


async def run_tasks(name: str, cluster: str, application: Application, options: Any) -> None:
    async with waltz.open_async_client(cluster, application, **options) as client:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            task = Task(application, json.loads(line), name)
            say(application, await work_with_tasks(client, task))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.client", description=__doc__)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--partitions", required=True, type=int)
    parser.add_argument("--journals", required=True, type=Path)
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
    journals = [
        Journal(given.journals, given.name, each, keeps_fed=False)
        for each in range(given.partitions)
    ]
    work = (given.name, given.cluster, Application(journals, LOAD), options)
    if given.face == "threads":
        run_threads(*work)
    else:
        asyncio.run(run_tasks(*work))
    return 0


if __name__ == "__main__":
    sys.exit(main())
