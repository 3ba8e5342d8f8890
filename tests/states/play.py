"""Plays states: enters one, asks again and again until all that is so is said, and leaves it.

What is false fails at once, at whichever of the questions it is said; what is so and not said yet
is asked for again for a while. In the end the test itself tries an append where it knows whether
that is committed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.states.judge import Found, Truth, all_texts, judge
from tests.states.table import State
from tests.states.world import REFUSED_SECONDS, World

SAID_SECONDS_MAX = 90.0
LATE_SECONDS = 20.0
"""How long a state lasts at least: by then what is remembered for a while is forgotten."""


@dataclass
class Played:
    name: str
    questions: int
    seconds: float
    wrong: Sequence[str]


def play(world: World, state: State, *, pause_seconds: float = 0.0) -> Played:
    """`pause_seconds`: between two questions, which take all that two cores can do."""
    began = time.monotonic()
    truth = state.enter(world)
    truth.since = began
    entered = time.monotonic()
    questions = 0
    wrong: list[str] = []
    while not wrong:
        answers = world.ask()
        found = judge(world, truth, answers)
        questions += 1
        wrong += [f"question {questions}: {each}" for each in all_texts(Found(found.false))]
        lasted = time.monotonic() - entered
        if not found.missing and lasted > LATE_SECONDS:
            break
        if lasted > SAID_SECONDS_MAX:
            wrong += all_texts(Found([], found.missing))
        time.sleep(pause_seconds)
    wrong += _try_appends(world, truth)
    state.leave(world)
    world.wait_until_well()
    return Played(state.name, questions, time.monotonic() - began, wrong)


def _try_appends(world: World, truth: Truth) -> list[str]:
    """Whether the test is right about appends; without a coordinator no client can be opened."""
    wrong = []
    for number, is_writable in truth.writable.items() if truth.coordinator else ():
        if is_writable is True and not world.append(number):
            wrong.append(f"the test: no append is committed in partition {number}")
        if is_writable is False and world.append(number, seconds=REFUSED_SECONDS):
            wrong.append(f"the test: an append is committed in partition {number}")
    return wrong
