"""The submitting processes together: start them, follow them, break something on the way."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from demo.cluster import Cluster, DemoError, last_lines, stop
from demo.story import Story

SAMPLE_SECONDS: Final = 1.0
PAUSE_SECONDS_MAX: Final = 15.0
"""Seconds after a storage node was killed in which a pause counts as caused by that."""

MENTION_SECONDS: Final = 5.0
"""Pause between two lines about how the submission gets on."""

COUNTS: Final = ("submitted", "completed", "applied", "executed", "conflicts")


@dataclass
class Submitter:
    """One process, and the last line it printed."""

    share: int
    process: asyncio.subprocess.Process
    log: Path
    said: dict[str, Any] = field(default_factory=dict)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """Per line: its time, and the longest time without a completion before it."""

    @property
    def done(self) -> bool:
        return bool(self.said.get("done"))

    async def follow(self) -> None:
        """Take the process's lines until it ends. Raises DemoError: it ended before it was done."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said = json.loads(line)
            self.gaps.append((self.said["at"], self.said["longest_gap_seconds"]))
        status = await self.process.wait()
        if not self.done:
            raise DemoError(
                f"submitter {self.share} ended with status {status}:\n{last_lines(self.log)}"
            )


@dataclass
class Submission:
    """The result of the submission. Times are seconds since its start."""

    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    rates: list[tuple[float, float]] = field(default_factory=list)
    """One sample per second: its time, and transactions completed per second."""

    storage: str = ""
    killed_at: float | None = None
    committed_at_kill: int = 0
    """Transactions whose writers knew them to be committed when the node was killed."""

    restart_seconds: float = 0.0
    pause_seconds: float = 0.0

    @property
    def transactions_per_second(self) -> float:
        return self.counts["applied"] / self.seconds


class Run:
    """Follows the submitters, and kills one storage node when its moment has come."""

    def __init__(
        self, cluster: Cluster, submitters: list[Submitter], total: int, seed: int, story: Story
    ) -> None:
        self._cluster = cluster
        self._story = story
        self._total = total
        self._submitters = submitters
        random = Random(seed)
        self._storage = random.choice(sorted(cluster.processes("storage")))
        self._kill_after = int(total * random.uniform(0.2, 0.6))
        self._started = time.monotonic()
        self.result = Submission(storage=self._storage)

    async def watch(self, show: Callable[[Submission], None]) -> Submission:
        """Return once every transaction has been applied and the killed node is back.

        Raises DemoError: a submitter failed, or the node did not come back.
        """
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                followers = [group.create_task(each.follow()) for each in self._submitters]
                breaker = group.create_task(self._break())
                sampled_at, sampled = self._started, 0
                mentioned_at = self._started
                while not all(each.done for each in self._submitters):
                    await asyncio.sleep(0.1)
                    self._add_up()
                    show(self.result)
                    now = time.monotonic()
                    if now - sampled_at >= SAMPLE_SECONDS:
                        completed = self.result.counts["completed"]
                        rate = (completed - sampled) / (now - sampled_at)
                        self.result.rates.append((now - self._started, rate))
                        sampled_at, sampled = now, completed
                    if now - mentioned_at >= MENTION_SECONDS:
                        mentioned_at = now
                        self._story.mention("flights", self._so_far())
                self._add_up()
                self.result.seconds = time.monotonic() - self._started
                show(self.result)
                await breaker
                for each in self._submitters:
                    # The process waits for the end of its input.
                    assert each.process.stdin is not None
                    each.process.stdin.close()
                await asyncio.gather(*followers)
        except* DemoError as failures:
            failure = failures.exceptions[0]
        if failure is not None:
            raise failure
        self.result.pause_seconds = self._pause()
        return self.result

    def _add_up(self) -> None:
        for name in COUNTS:
            self.result.counts[name] = sum(each.said.get(name, 0) for each in self._submitters)

    def _so_far(self) -> str:
        counts = self.result.counts
        return (
            f"{counts['applied']:,} of {self._total:,} applied,"
            f" {counts['conflicts']:,} appends refused by a lock and tried again"
        )

    async def _break(self) -> None:
        while self.result.counts["completed"] < self._kill_after:
            await asyncio.sleep(0.05)
        self.result.killed_at = time.monotonic() - self._started
        self.result.committed_at_kill = self.result.counts["completed"]
        self._story.tell(
            "kill",
            f"{self._storage} killed with SIGKILL, {self.result.committed_at_kill:,} transactions"
            " committed so far; appends go on",
        )
        self.result.restart_seconds = await self._cluster.kill_storage(self._storage)
        self._story.tell(
            "restart",
            f"{self._storage} started again {self.result.restart_seconds * 1000:,.0f} ms after"
            " the kill",
        )

    def _pause(self) -> float:
        """Return the longest time for which a submitter saw no completion after the kill."""
        assert self.result.killed_at is not None
        begin = self._started + self.result.killed_at
        end = begin + PAUSE_SECONDS_MAX
        gaps = [gap for each in self._submitters for at, gap in each.gaps if begin <= at <= end]
        return max(gaps, default=0.0)


@asynccontextmanager
async def submitters(
    arguments: Callable[[int], list[str]], logs: Path, count: int
) -> AsyncIterator[list[Submitter]]:
    """Run `count` submitting processes for as long as the block; stop them whatever happens."""
    started: list[Submitter] = []
    try:
        for share in range(count):
            log = logs / f"submit-{share}.log"
            with log.open("wb") as errors:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "demo.submit", *arguments(share)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
            started.append(Submitter(share, process, log))
        yield started
    finally:
        await asyncio.gather(*(stop(each.process) for each in started))
