"""Fuzzes every decoder of files and frames, on all cores.

make fuzz
python -m tests.fuzz --inputs 100000 --seed mine --target segment
python -m tests.fuzz --target segment --input 'mine 17'      one input, with its traceback
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.fuzz.fuzzing import Findings, fuzz, input_of, target_named
from tests.fuzz.targets import TARGETS

INPUTS_AT_A_TIME = 2_000
FAILURES_SHOWN = 20


def fuzz_part(name: str, seed: str, first: int, count: int) -> tuple[str, Findings]:
    logging.disable(logging.CRITICAL)
    return name, fuzz(target_named(name), seed, first, count)


def parts(names: Sequence[str], inputs: int, seed: str) -> list[tuple[str, str, int, int]]:
    """The inputs, by target according to its share, in parts that take turns."""
    chosen = [target for target in TARGETS if target.name in names]
    shares = sum(target.share for target in chosen)
    found = []
    for target in chosen:
        count = inputs * target.share // shares
        for first in range(0, count, INPUTS_AT_A_TIME):
            size = min(INPUTS_AT_A_TIME, count - first)
            found.append((first / count, (target.name, seed, first, size)))
    return [part for _, part in sorted(found)]


def run_all(names: Sequence[str], inputs: int, seed: str, processes: int) -> dict[str, Findings]:
    totals = {name: Findings() for name in names}
    started = said = time.monotonic()
    done = 0
    with ProcessPoolExecutor(processes) as pool:
        futures = [pool.submit(fuzz_part, *part) for part in parts(names, inputs, seed)]
        for future in as_completed(futures):
            name, found = future.result()
            totals[name].merge(found)
            done += found.inputs
            if time.monotonic() - said > 10:
                said = time.monotonic()
                failures = sum(len(each.failures) for each in totals.values())
                rate = done / (said - started)
                print(f"{done} inputs, {rate:.0f}/s, {failures} failures", flush=True)
    return totals


def show(totals: dict[str, Findings]) -> None:
    print(
        f"\n{'target':<16}{'inputs':>10}{'inputs/s of a core':>20}{'peak KiB':>10}{'failures':>10}"
    )
    for name, found in totals.items():
        rate = found.inputs / found.seconds if found.seconds else 0
        print(
            f"{name:<16}{found.inputs:>10}{found.accepted:>10}{rate:>14.0f}"
            f"{found.peak_bytes // 1024:>10}{len(found.failures):>10}"
        )
    failures = [text for found in totals.values() for text in found.failures]
    print(f"\n{sum(found.inputs for found in totals.values())} inputs, {len(failures)} failures")
    for text in failures[:FAILURES_SHOWN]:
        print(f"python -m tests.fuzz {text}")


def main() -> int:
    names = [target.name for target in TARGETS]
    parser = argparse.ArgumentParser(description="Fuzz the decoders of files and frames.")
    parser.add_argument("--inputs", type=int, default=2_000_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--target", choices=names, help="this one only")
    parser.add_argument("--input", help="this one input only, as a failure named it")
    arguments = parser.parse_args()
    if arguments.input is not None:
        target = target_named(arguments.target)
        data = input_of(target, arguments.input)
        print(data.hex())
        target.run(data)
        return 0
    chosen = names if arguments.target is None else [arguments.target]
    totals = run_all(chosen, arguments.inputs, arguments.seed, arguments.processes)
    show(totals)
    return 1 if any(found.failures for found in totals.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
