"""Run the shop under load while its processes are killed, and judge it: `python -m examples.shop`.

Exit code: 0, everything is right; 1, something is wrong; 2, the run did not come to its end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from demo.cluster import DemoError
from examples.shop.trial.customers import ShopClosedError
from examples.shop.trial.drawing import Load
from examples.shop.trial.services import NotServedError
from examples.shop.trial.two_phase_trial import run_in_two_phases
from examples.shop.trial.waltz_trial import NotSettledError, Plan, Result, run_on_waltz

WRONG, NOT_RUN = 1, 2


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m examples.shop", description=__doc__)
    made.add_argument("--orders", type=_positive, default=2_000, help="default: 2000")
    made.add_argument("--customers", type=_positive, default=16, help="at once; default: 16")
    made.add_argument("--items", type=_positive, default=5, help="few make contention; default: 5")
    made.add_argument("--accounts", type=_positive, default=20, help="default: 20")
    made.add_argument("--workers", type=_positive, default=2, help="of each service; default: 2")
    made.add_argument("--servers", type=_positive, default=2, help="of the log; default: 2")
    made.add_argument(
        "--kills", type=_count, metavar="N", help="processes to kill; default: one per 100 orders"
    )
    made.add_argument(
        "--minutes", type=float, help="begin no order after that; what was ordered is judged"
    )
    made.add_argument(
        "--two-phase", action="store_true", help="run the version with a coordinator instead"
    )
    made.add_argument(
        "--bug", action="store_true", help="with --two-phase: plant the bug that docs/shop.md tells"
    )
    made.add_argument("--seed", type=int, default=1, help="draws orders and victims; default: 1")
    made.add_argument("--directory", type=Path, help="new, and kept; default: a temporary one")
    made.add_argument("--json", action="store_true", help="print the result as JSON")
    return made


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; expected 1 or more")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number}; expected 0 or more")
    return number


def show(result: Result) -> None:
    print(
        f"{result.orders} orders in {result.seconds:.1f} s"
        f" ({result.orders / result.seconds:.0f} per second),"
        f" settled {result.settling_seconds:.1f} s later,"
        f" {result.transactions} transactions"
    )
    for title, table in (
        ("orders", result.states),
        ("kills", result.kills),
        ("customers", result.counts),
        ("ms to a confirmation", {k: round(v, 1) for k, v in result.post_milliseconds.items()}),
    ):
        print(f"  {title}: {', '.join(f'{name} {count}' for name, count in table.items())}")
    for line in result.wrong:
        print(f"  WRONG: {line}")
    print(f"{result.checked} checks: {'all right' if result.is_right else 'WRONG'}")


async def run(plan: Plan, *, two_phase: bool, has_bug: bool) -> Result:
    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if two_phase:
        return await run_in_two_phases(plan, say, has_bug=has_bug)
    return await run_on_waltz(plan, say)


def main(arguments: Sequence[str] | None = None) -> int:
    arguments_of = parser()
    options = arguments_of.parse_args(arguments)
    if options.bug and not options.two_phase:
        arguments_of.error("--bug is for --two-phase: the shop on Waltz has no such switch")
    directory = options.directory or Path(tempfile.mkdtemp(prefix="waltz-shop-"))
    directory = directory.absolute()
    if options.directory is not None:
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            print(f"{directory} exists; give a new --directory", file=sys.stderr)
            return NOT_RUN
    plan = Plan(
        Load(options.seed, options.orders, options.items, options.accounts),
        directory,
        customers=options.customers,
        workers=options.workers,
        servers=options.servers,
        seconds_max=None if options.minutes is None else 60 * options.minutes,
        kills=options.orders // 100 if options.kills is None else options.kills,
    )
    try:
        result = asyncio.run(run(plan, two_phase=options.two_phase, has_bug=options.bug))
    except (DemoError, NotServedError, NotSettledError, ShopClosedError) as error:
        print(f"{error}\nthe files of the run are in {directory}", file=sys.stderr)
        return NOT_RUN
    except KeyboardInterrupt:
        print(f"stopped; the files of the run are in {directory}", file=sys.stderr)
        return NOT_RUN
    if options.json:
        print(json.dumps(asdict(result), indent=2))
    else:
        show(result)
    if options.directory is None and result.is_right:
        shutil.rmtree(directory)
    else:
        print(f"the files of the run are in {directory}", file=sys.stderr)
    return 0 if result.is_right else WRONG


if __name__ == "__main__":
    sys.exit(main())
