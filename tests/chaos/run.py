"""A chaos run: schedules on clusters of processes, several side by side, each judged at its end.

Owns what happens in which order. A lane is a cluster with its clients, which live as long as the
run; it takes one schedule after the other.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import waltz
from tests.chaos.cluster import SERVERS, ProxiedCluster
from tests.chaos.judge import Ledger
from tests.chaos.schedule import Planned, Schedule, draw_schedule
from tests.live.journal import event_path, read_events, read_partition
from tests.live.judge import Account
from tests.live.launch import Process, running
from waltz.limits import HANDSHAKE_SECONDS_MAX, NOT_READY_SECONDS_MAX, RECONNECT_SECONDS_MAX
from waltz.sim.judges.history import FedRecord
from waltz.types import PartitionId

BEAT_SECONDS: Final = 0.5
"""With 0.2 s clients on a machine with ten times as much other work took living servers for dead
without end."""

CLIENTS: Final[Sequence[tuple[str, str, float | None]]] = (
    ("client-a", "asyncio", BEAT_SECONDS),
    ("client-b", "threads", None),
    ("client-c", "threads", BEAT_SECONDS),
)
"""Name, face, and time between heartbeats if not the usual one."""

CONTEXTS_MAX: Final = 100
"""Of one client in one schedule, so that numbers are known before."""

LEAD_SECONDS: Final = 0.05
"""From the moment clients are told until the schedule begins."""

BACK_SECONDS_MAX: Final = RECONNECT_SECONDS_MAX + 2 * HANDSHAKE_SECONDS_MAX + NOT_READY_SECONDS_MAX
"""From the end of the last fault until every partition can be written to again, as
docs/operating/connecting.md has it for connections that have ended: one pause, an attempt that was
under way and one that succeeds, a mount."""

SCHEDULE_SECONDS_MAX: Final = 180.0
"""After which a client that has not reported hangs."""

ASKED_OF_BEFORE: Final = 3
READ_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    seed: str
    numbers: Sequence[int]
    """Of the schedules, in order."""
    lanes: int
    directory: Path
    seconds_max: float = 86_400.0
    """After so long no further schedule begins."""


@dataclass
class Result:
    """What lanes have come to, together."""

    schedules: int = 0
    acts: int = 0
    befallen: Counter[str] = field(default_factory=Counter)
    """By deed, how many connections."""
    contexts: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    outcomes: int = 0
    connections: int = 0
    back_seconds: list[float] = field(default_factory=list)
    failures: list[tuple[int, list[str]]] = field(default_factory=list)
    """Of schedules, by number; -1: of a whole lane."""

    def summary(self, seconds: float) -> dict[str, Any]:
        """One JSON-able line."""
        back = sorted(self.back_seconds) or [0.0]
        return {
            "schedules": self.schedules,
            "acts": self.acts,
            "befallen": dict(sorted(self.befallen.items())),
            "connections": self.connections,
            "contexts": self.contexts,
            "verdicts": dict(sorted(self.verdicts.items())),
            "outcomes": self.outcomes,
            "back_seconds_median": round(back[len(back) // 2], 3),
            "back_seconds_max": round(back[-1], 3),
            "seconds": round(seconds, 1),
            "violations": sum(len(found) for _, found in self.failures),
        }


class Lane:
    """A cluster with its clients."""

    def __init__(
        self,
        cluster: ProxiedCluster,
        log: waltz.LogReader,
        result: Result,
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._result = result
        self._ledger = Ledger()
        self._read_to = [0] * cluster.partitions
        self._heard_to: Counter[Path] = Counter()
        """By journal, up to which byte it was read."""

    async def suffer(self, schedule: Schedule) -> list[str]:
        """Let `schedule` happen and return the violations. Raises RuntimeError: a client hangs."""
        random = Random(f"{schedule.seed} questions {schedule.number}")
        began = time.monotonic() + LEAD_SECONDS
        calm_at = began + max(planned.at + planned.act.seconds for planned in schedule.acts)
        clients = self._cluster.clients
        for place, client in enumerate(clients.values()):
            task = {
                "seed": schedule.seed,
                "number": schedule.number,
                "first": (schedule.number * len(CLIENTS) + place) * CONTEXTS_MAX,
                "calm_at": calm_at,
                "of_before": self._known(random),
            }
            client.tell(json.dumps(task))
        befallen = self._befallen()
        await asyncio.gather(*[self._perform(planned, began) for planned in schedule.acts])
        calm_at = max(calm_at, time.monotonic())
        reports = {name: await hear(client) for name, client in clients.items()}
        back_seconds = max(0.0, *(each["back_at"] - calm_at for each in reports.values()))
        records = await asyncio.to_thread(self._read_on)
        violations = self._ledger.judge_schedule(self._account(), records)
        violations += [
            f"{name}: {each}" for name, report in reports.items() for each in report["complaints"]
        ]
        if back_seconds > BACK_SECONDS_MAX:
            violations.append(
                f"back: {back_seconds:.1f} s after the last fault; expected {BACK_SECONDS_MAX:g} s"
            )
        result = self._result
        result.schedules += 1
        result.acts += len(schedule.acts)
        result.befallen += self._befallen() - befallen
        result.back_seconds.append(back_seconds)
        return violations

    def finish(self) -> list[str]:
        """Return what is wrong with all of it together."""
        result, ledger = self._result, self._ledger
        result.contexts += ledger.contexts
        result.verdicts += ledger.verdicts
        result.outcomes += len(ledger.history.outcomes)
        result.connections += sum(len(proxy.arrivals) for proxy in self._cluster.proxies)
        return [*ledger.judge_all(), *self._cluster.complaints()]

    async def _perform(self, planned: Planned, began: float) -> None:
        await asyncio.sleep(max(0.0, began + planned.at - time.monotonic()))
        await self._cluster.proxies[planned.server].perform(planned.act)

    def _account(self) -> Account:
        """Return what the clients have written down since the last time."""
        account = Account()
        for name in self._cluster.clients:
            for number in range(self._cluster.partitions):
                path = event_path(self._cluster.directory, name, number)
                account.add(name, PartitionId(number), read_events(path, self._heard_to[path]))
                self._heard_to[path] = path.stat().st_size
        return account

    def _befallen(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for proxy in self._cluster.proxies:
            found += proxy.done
        return found

    def _known(self, random: Random) -> list[tuple[list[int], int]]:
        """Some requests of earlier schedules that are in the log, of whichever client."""
        known = self._ledger.committed
        chosen = random.sample(known, min(ASKED_OF_BEFORE, len(known)))
        return [([*map(int, request_id)], after) for _, request_id, after in chosen]

    def _read_on(self) -> dict[PartitionId, list[FedRecord]]:
        """Return what has come into the log since the last time."""
        found: dict[PartitionId, list[FedRecord]] = {}
        for number, first in enumerate(self._read_to):
            end = self._log.high_water_mark(number) + 1
            found[PartitionId(number)] = list(read_partition(self._log, number, first, end))
            self._read_to[number] = end
        return found


async def hear(client: Process) -> dict[str, Any]:
    """Return the next report. Raises RuntimeError: the client hangs or has ended."""
    try:
        async with asyncio.timeout(SCHEDULE_SECONDS_MAX):
            report = await client.hear()
    except TimeoutError:
        raise RuntimeError(
            f"hang: {client.name} has not ended all contexts and outcomes in"
            f" {SCHEDULE_SECONDS_MAX:g} s; see {client.log}"
        ) from None
    if report is None:
        raise RuntimeError(f"{client.name} has ended; see {client.log}")
    return report


@asynccontextmanager
async def running_lane(directory: Path, result: Result) -> AsyncIterator[Lane]:
    async with running(ProxiedCluster(directory)) as cluster:
        for name, face, beat in CLIENTS:
            cluster.add_client(
                *(name, "tests.chaos.client", "--cluster", cluster.address, "--name", name),
                *("--face", face, "--partitions", str(cluster.partitions)),
                *("--journals", str(directory)),
                *(() if beat is None else ("--beat", str(beat))),
            )
        await cluster.start_clients()
        log = await asyncio.to_thread(
            waltz.open_reader, str(cluster.coordinator), timeout_seconds=READ_SECONDS_MAX
        )
        yield Lane(cluster, log, result)
        await asyncio.to_thread(log.close)


async def run_lane(
    settings: Settings, place: int, result: Result, say: Callable[[str], None]
) -> None:
    """Play this lane's share of the schedules, up to the first that fails: those after it prove
    nothing."""
    number = -1
    until = time.monotonic() + settings.seconds_max
    try:
        async with running_lane(settings.directory / f"lane-{place}", result) as lane:
            for number in settings.numbers[place :: settings.lanes]:
                if time.monotonic() > until:
                    break
                violations = await lane.suffer(draw_schedule(settings.seed, number, SERVERS))
                if violations:
                    result.failures.append((number, violations))
                    return
                if result.schedules % 50 == 0:
                    say(f"{result.schedules} of {len(settings.numbers)} schedules")
            if violations := lane.finish():
                result.failures.append((-1, violations))
    except (RuntimeError, waltz.WaltzError) as error:
        result.failures.append((number, [str(error)]))


async def run(settings: Settings, say: Callable[[str], None]) -> Result:
    result = Result()
    async with asyncio.TaskGroup() as group:
        for place in range(settings.lanes):
            group.create_task(run_lane(settings, place, result, say))
    return result
