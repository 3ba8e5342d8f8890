"""A client that writes and follows, as a process: `python -m tests.live.client`.

It submits contexts to all partitions, a thread per partition, and follows all of them; what it does
and sees goes into journals. It prints its progress as JSON lines. On standard input it is told to
`stop` submitting, and then, as a JSON list, up to which transaction it has to see each partition.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import waltz
from tests.live.application import Application, Intent, Load
from tests.live.journal import Journal
from waltz.cli.log_format import set_up_logging

REPORT_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Manner:
    """A way to submit, with `pause_seconds` between two contexts of one partition."""

    load: Load
    pause_seconds: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)


MANNERS: Final = {
    # As fast as possible; however long a partition is away, nothing is given up.
    "fast": Manner(
        Load(250, plain=0.0, counting=0.4, hasty=0.02, hasty_seconds=(0.05, 3.0), padding=[120]),
        options={
            "max_concurrent_transactions": 32,
            "retry_threads": 2,
            "mount_seconds_max": 3600.0,
        },
    ),
    "steady": Manner(
        Load(5, plain=0.7, counting=0.5, hasty=0.0, hasty_seconds=(1.0, 1.0), padding=[20]),
        pause_seconds=0.03,
    ),
}


class Submitters:
    """A thread per partition; those whose partition has a server take what is left."""

    def __init__(
        self, client: waltz.WaltzClient, application: Application, given: argparse.Namespace
    ) -> None:
        self._client = client
        self._application = application
        self._stopping = threading.Event()
        self._pause_seconds = MANNERS[given.manner].pause_seconds
        self._numbers = iter(range(given.first, given.first + given.step * given.count, given.step))
        seed = f"{given.seed} {given.name}"
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
            intent.submit(self._client)
            self._stopping.wait(self._pause_seconds)


def say(application: Application, **more: object) -> None:
    complaints = application.complaints
    print(json.dumps({**application.progress.report(), "complaints": complaints, **more}))
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.live.client", description=__doc__)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--manner", required=True, choices=MANNERS)
    parser.add_argument("--first", required=True, type=int, help="number of the first context")
    parser.add_argument("--step", required=True, type=int, help="to the next one")
    parser.add_argument("--count", required=True, type=int)
    parser.add_argument("--partitions", required=True, type=int)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--journals", required=True, type=Path)
    parser.add_argument("--forgetful", action="store_true", help="do not apply one transaction")
    given = parser.parse_args()
    set_up_logging()
    manner = MANNERS[given.manner]
    journals = [Journal(given.journals, given.name, each) for each in range(given.partitions)]
    application = Application(journals, manner.load, forgetful=given.forgetful)
    with waltz.open_client(given.cluster, application, **manner.options) as client:
        print("ready", flush=True)
        submitters = Submitters(client, application, given)
        ended = threading.Event()

        def report() -> None:
            while not ended.wait(REPORT_SECONDS):
                say(application, submitting=submitters.are_busy)

        reporting = threading.Thread(target=report, daemon=True)
        reporting.start()
        marks = listen(submitters)
        while any(
            client.client_high_water_mark(number) < mark for number, mark in enumerate(marks)
        ):
            time.sleep(REPORT_SECONDS)
        ended.set()
        reporting.join()
    for journal in journals:
        journal.close()
    say(application, checksums=[journal.checksum for journal in journals], done=True)
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
