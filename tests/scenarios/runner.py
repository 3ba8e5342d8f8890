"""Plays a story under one seed and says what did not come out as told.

Owns the course of a telling: line after line, then what every story must end with. That is a log
that can be read, clients that were told nothing that is not so, and disks whose marks only grew.
One story, with what the product logs meanwhile; without a name, a list of all:

    python -m tests.scenarios.runner replacing_a_replica 3
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.scenarios.language import Manner, Step, Story, parse_story
from tests.scenarios.stage import Stage
from tests.scenarios.states import States
from waltz.errors import WaltzError
from waltz.sim.judges.anomalies import check_anomalies
from waltz.sim.judges.checkers import check_users
from waltz.sim.knobs import turned
from waltz.sim.loop import SimulationError

DIRECTORY: Final = Path(__file__).parent

EVENT_SECONDS_MAX: Final = 300.0
"""Virtual time after which what a line tells has not happened."""

EVENTUALLY_SECONDS_MAX: Final = 120.0
"""Virtual time after which what is to be eventually is not."""

LOOK_SECONDS_MIN: Final = 0.02
LOOK_SECONDS_MAX: Final = 2.0
"""Between two looks at a state that is waited for."""


class TellingError(Exception):
    """A line did not come out as told."""


@dataclass(frozen=True, slots=True)
class Telling:
    """What a story came to under one seed. No violations: as told."""

    violations: tuple[str, ...]
    digest: str
    lines: tuple[str, ...]
    """When each line was done, for people."""


def stories() -> list[Path]:
    return sorted(DIRECTORY.glob("*.txt"))


def read_story(path: Path) -> Story:
    """Raises StoryError."""
    return parse_story(path.name, path.read_text())


def tell(story: Story, seed: int) -> Telling:
    stage = Stage(story.name, seed, story.cluster)
    knobs = {"CHECKPOINT_TRANSACTIONS": story.cluster[3]} if len(story.cluster) > 3 else {}
    lines: list[str] = []
    violations: list[str] = []
    collecting = gc.isenabled()
    gc.disable()  # when garbage is found must not depend on what ran before
    try:
        with turned(knobs):
            try:
                stage.loop.run_until_complete(
                    stage.sites.unless_broken(_tell(stage, story, lines, violations))
                )
            except (TellingError, SimulationError) as error:
                violations.append(f"{story.name}: {error}")
            violations += stage.loop.failures()
            stage.loop.shut_down()
        return Telling(tuple(violations), stage.trace.digest(), tuple(lines))
    finally:
        del stage
        gc.collect(0)
        if collecting:
            gc.enable()


async def _tell(stage: Stage, story: Story, lines: list[str], violations: list[str]) -> None:
    await stage.cluster.start()
    for step in story.steps:
        await _take(stage, step)
        lines.append(f"{stage.loop.time():12.6f} {step.text}")
        stage.look_at_disks()
    try:
        log = await stage.read_log()
    except WaltzError as error:
        raise TellingError(f"in the end the log cannot be read: {error}") from error
    stage.end()
    violations += check_users(stage.history, log)
    violations += check_anomalies(stage.history)
    violations += stage.marks.judge(log)
    violations += stage.errors


async def _take(stage: Stage, step: Step) -> None:
    verb = getattr(States(stage) if step.phrase.is_state else stage, step.phrase.verb)
    where = f"line {step.line}: {step.text}"
    if not step.phrase.is_state:
        try:
            async with asyncio.timeout(EVENT_SECONDS_MAX):
                await verb(step.partition_id, *step.arguments)
        except TimeoutError:
            raise TellingError(f"{where}: not done after {EVENT_SECONDS_MAX:g} s") from None
        except (AssertionError, WaltzError) as error:
            raise TellingError(f"{where}: {error!r}") from error
        return
    began, pause_seconds = stage.loop.time(), LOOK_SECONDS_MIN
    while True:
        otherwise = await _looked(verb, step)
        seconds = stage.loop.time() - began
        if step.manner is Manner.EVENTUALLY:
            if otherwise is None:
                return
            if seconds > EVENTUALLY_SECONDS_MAX:
                raise TellingError(f"{where}: after {seconds:.0f} s {otherwise}")
        elif otherwise is not None:
            raise TellingError(f"{where}: after {seconds:.0f} s {otherwise}")
        elif seconds >= step.seconds:
            return
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, LOOK_SECONDS_MAX)


async def _looked(verb: Callable[..., Awaitable[str | None]], step: Step) -> str | None:
    try:
        return await verb(step.partition_id, *step.arguments)
    except WaltzError as error:  # what is looked at is not there, or cannot be reached now
        return f"it cannot be said: {error!r}"


@contextmanager
def quiet() -> Iterator[None]:
    """Let the product log nothing."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def main(name: str | None = None, seed: str = "0") -> int:
    if name is None:
        print(*(f"{path.stem:45} {read_story(path).title}" for path in stories()), sep="\n")
        return 0
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(message)s")
    telling = tell(read_story(DIRECTORY / f"{name}.txt"), int(seed))
    print(*telling.lines, *telling.violations, sep="\n")
    return bool(telling.violations)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
