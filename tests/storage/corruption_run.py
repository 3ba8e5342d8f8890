"""Every case of the corruption matrix, on all cores.

    make corruption
    python -m tests.storage.corruption_run --case 'small flip 0/0000000000000000000.seg 133 0x80'

Ends with 1 if a promise was broken, and prints how to see that case again.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from pathlib import Path

from tests.storage.corruption import Case, DataSet, Tally, all_cases, data_sets, run_cases

CASES_AT_A_TIME = 500
VIOLATIONS_SHOWN = 50


def run_part(data_set: DataSet, cases: Sequence[Case]) -> Tally:
    logging.disable(logging.CRITICAL)
    return run_cases(data_set, cases)


def split(found: Sequence[DataSet], *, every: int) -> Iterator[tuple[DataSet, list[Case]]]:
    for data_set in found:
        cases = islice(all_cases(data_set), 0, None, every)
        while part := list(islice(cases, CASES_AT_A_TIME)):
            yield data_set, part


def run_all(found: Sequence[DataSet], *, processes: int, every: int) -> Tally:
    """Run each `every`-th case of all directories; say how far it is."""
    tally = Tally()
    started = said = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        futures = [pool.submit(run_part, *part) for part in split(found, every=every)]
        for done, future in enumerate(as_completed(futures), 1):
            tally.merge(future.result())
            now = time.monotonic()
            if now - said > 10 or done == len(futures):
                said = now
                rate = tally.cases / (now - started)
                print(
                    f"{done} of {len(futures)} parts, {tally.cases} cases, {rate:.0f}/s,"
                    f" {len(tally.violations)} violations",
                    flush=True,
                )
    return tally


def show(tally: Tally) -> None:
    print(f"\n{tally.cases} cases; {tally.unchanged} more would change nothing")
    for title, counts in (("storage node", tally.node), ("waltz disk verify", tally.verify)):
        print(f"\n{title}")
        for text, count in counts.most_common():
            print(f"{count:>10}  {text}")
    print(f"\n{len(tally.violations)} violations")
    for text in tally.violations[:VIOLATIONS_SHOWN]:
        print(f"python -m tests.storage.corruption_run --case {text}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the corruption matrix.")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every", type=int, default=1, help="run each n-th case only")
    parser.add_argument("--set", dest="name", help="of this directory only")
    parser.add_argument("--case", help="this one only, as it was printed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = data_sets(Path(place))
    if arguments.case is not None:
        name, _, text = arguments.case.partition(" ")
        (data_set,) = (each for each in found if each.name == name)
        tally = run_cases(data_set, [Case.parse(text)])
    else:
        chosen = [each for each in found if arguments.name in (None, each.name)]
        tally = run_all(chosen, processes=arguments.processes, every=arguments.every)
    show(tally)
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
