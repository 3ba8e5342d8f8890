"""Contexts that are executed again, a little later each time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from waltz.client.appends.submission import Submission
from waltz.client.applying.calls import execute_again, tell_lock_failure, tell_refusal
from waltz.client.client_metrics import Refusals
from waltz.client.partitions.client_partition_events import Submitted
from waltz.connections.tasks_shell import Tasks
from waltz.host import Random

if TYPE_CHECKING:
    from waltz.client.appends.submissions_shell import Telling
    from waltz.client.partitions.partition_runner_shell import Call

TRANSACTION_RETRY_SECONDS_MIN: Final = 0.001
TRANSACTION_RETRY_SECONDS_MAX: Final = 1.0
"""Back-off, with jitter, between attempts of one transaction context."""

RETRIES_PER_CALL_MAX: Final = 100
"""Contexts that one retry thread executes again at once."""


class Retries:
    """See the module. Made on the loop; `threads` 0: this client executes nothing again."""

    def __init__(
        self,
        tasks: Tasks,
        random: Random,
        call: Call,
        threads: int,
        finish: Callable[[Submission, Exception | None], None],
        telling: Telling,
    ) -> None:
        self._tasks = tasks
        self._random = random
        self._call = call
        self._threads = threads
        self._finish = finish
        self._telling = telling
        self.count = 0
        """Contexts that were executed and sent again."""
        self.refusals = Refusals()
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[Submission] = asyncio.Queue()
        """Contexts whose time has come."""

    def start(self) -> None:
        for _ in range(self._threads):
            self._tasks.start(self._execute_retries())

    def retry(self, submissions: Sequence[Submission]) -> None:
        """Execute these again soon, or end them if this client never does (PM-40, PM-41)."""
        for submission in submissions:
            if not submission.undecided:
                continue
            if submission.lock_failure is not None:
                self.refusals.add(submission.refused_lock())
            if not self._threads:
                self._telling.start(submission, partial(_tell_unretried, submission), None)
                continue
            longest = min(
                TRANSACTION_RETRY_SECONDS_MAX,
                TRANSACTION_RETRY_SECONDS_MIN * 2.0 ** min(submission.attempts, 20),
            )
            delay = self._random.uniform(0.0, longest)
            self._loop.call_later(delay, self._waiting.put_nowait, submission)

    async def _execute_retries(self) -> None:
        """Execute contexts whose time has come, many at once; runs once per retry thread."""
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < RETRIES_PER_CALL_MAX and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            batch = [submission for submission in batch if submission.undecided]
            if not batch:
                continue
            outcomes = await self._call(partial(_execute_all, batch))
            for submission, outcome in zip(batch, outcomes, strict=True):
                if outcome is not True:
                    self._finish(submission, outcome or None)
                elif submission.undecided:
                    self.count += 1
                    submission.runner.mailbox.put(Submitted([submission]))


def _execute_all(batch: Sequence[Submission]) -> list[Exception | bool]:
    return [execute_again(each) for each in batch]


def _tell_unretried(submission: Submission) -> None:
    tell_lock_failure(submission)
    tell_refusal(submission)
