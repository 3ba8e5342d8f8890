"""Runs targets on inputs drawn from a seed, and holds them to their promises: no other error, no
hang, no allocation beyond what the input is worth."""

from __future__ import annotations

import signal
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.fuzz.targets import TARGETS, Target

SECONDS_MAX: Final = 5.0
"""For one input; the slowest takes some milliseconds."""

ALLOCATION_BYTES: Final = 4 * 1024 * 1024
"""What a target may take whatever the input: windows and tables of a fixed size."""

MEASURED_EVERY: Final = 50


class HangError(Exception):
    """An input took too long."""


@dataclass
class Findings:
    """What a run has seen."""

    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    failures: list[str] = field(default_factory=list)

    def merge(self, other: Findings) -> None:
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.seconds += other.seconds
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.failures += other.failures


@contextmanager
def time_limit() -> Iterator[None]:
    """Let every `HangError` timer that is set inside raise in this thread."""

    def on_alarm(number: int, frame: object) -> None:
        raise HangError(f"more than {SECONDS_MAX} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def target_named(name: str) -> Target:
    return next(target for target in TARGETS if target.name == name)


def input_of(target: Target, seed: str) -> bytes:
    """The input that a seed makes, always the same."""
    return target.make(Random(f"{target.name} {seed}"))


def peak_of(target: Target, data: bytes) -> int:
    """Run it and return how much memory it took at a time."""
    tracemalloc.start()
    try:
        target.run(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def allowed_peak(target: Target, data: bytes) -> int:
    return ALLOCATION_BYTES + target.bytes_per_byte * len(data)


def fuzz(target: Target, seed: str, first: int, count: int) -> Findings:
    """Run `count` inputs of a seed from number `first` on. A failure names how to see it again."""
    found = Findings()
    started = time.perf_counter()
    with time_limit():
        for number in range(first, first + count):
            data = input_of(target, f"{seed} {number}")
            signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
            try:
                if number % MEASURED_EVERY == 0:
                    peak = peak_of(target, data)
                    found.peak_bytes = max(found.peak_bytes, peak)
                    assert peak <= allowed_peak(target, data), f"{peak} bytes allocated"
                else:
                    found.accepted += target.run(data)
            except Exception as error:
                recipe = f"--target '{target.name}' --input '{seed} {number}'"
                found.failures.append(f"{recipe}: {error!r:.200}")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            found.inputs += 1
    found.seconds = time.perf_counter() - started
    return found
