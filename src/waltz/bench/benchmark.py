"""A run of several workloads: calibrates before each, starts the clusters they need, ends them.

Owns the display of progress and the report of the whole.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from waltz.bench.calibration import calibrate
from waltz.bench.results import Result
from waltz.bench.run import run
from waltz.bench.signals import ended_in_order
from waltz.bench.trial_cluster import BenchTarget, Shape, shape_of, trial_cluster
from waltz.bench.workload import Workload
from waltz.errors import ConfigurationError
from waltz.types import ClusterAddress, TlsSettings


class ProgressShown:
    """Shows progress on standard error; it is animated only on a terminal."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._name = ""
        self._text = ""

    def start(self, name: str) -> None:
        self._name = name

    def begin(self, text: str) -> None:
        self._text = text
        self._status.update(f"{self._name}: {text}")
        if not self._console.is_terminal:
            self._console.print(f"{self._name}: {text}", markup=False)

    def tick(self, transactions: int) -> None:
        sent = f", {transactions:,} sent so far" if transactions else ""
        self._status.update(f"{self._name}: {self._text}{sent}")


class Targets:
    """The cluster that was given, or else one that is started for the workloads of a shape."""

    def __init__(self, given: BenchTarget | None, directory: Path, shown: ProgressShown) -> None:
        self._given = given
        self._directory = directory
        self._shown = shown
        self._stack = ExitStack()
        self._shape: Shape | None = None
        self._running: BenchTarget | None = None
        self._count = 0

    def target_for(self, workload: Workload) -> BenchTarget:
        """Return the cluster for a workload. Raises ConfigurationError: the given one does not suit
        it."""
        shape = shape_of(workload)
        if self._given is not None:
            if shape.slow_sync_seconds or shape.is_fresh:
                raise ConfigurationError(
                    f"workload {workload.name} needs a cluster of its own; leave out --cluster"
                )
            return self._given
        if self._running is None or shape != self._shape or shape.is_fresh:
            self.close()
            self._shown.begin("starting a cluster")
            self._count += 1
            place = self._directory / f"cluster-{self._count}"
            self._running = self._stack.enter_context(trial_cluster(place, shape))
            self._shape = shape
        return self._running

    def close(self) -> None:
        self._stack.close()
        self._running = None


@contextmanager
def opened_targets(
    cluster: ClusterAddress | None, tls: TlsSettings | None, directory: Path, shown: ProgressShown
) -> Iterator[Targets]:
    """Give clusters; those that were started end with the block, and their files go."""
    given = None if cluster is None else BenchTarget(str(cluster), tls, {})
    with tempfile.TemporaryDirectory(dir=directory, prefix="bench-") as scratch:
        targets = Targets(given, Path(scratch), shown)
        try:
            yield targets
        finally:
            targets.close()


def measure(
    workloads: Sequence[Workload], targets: Targets, shown: ProgressShown, directory: Path
) -> Iterator[Result]:
    """Calibrate, then run each workload; yield its result."""
    for workload in workloads:
        shown.start(workload.name)
        shown.begin("calibrating")
        calibration = calibrate(directory)
        yield run(workload, targets.target_for(workload), calibration, shown)


def run_all(
    workloads: Sequence[Workload],
    directory: Path,
    on_result: Callable[[Result], None],
    *,
    cluster: ClusterAddress | None = None,
    tls: TlsSettings | None = None,
) -> list[Result]:
    """Run the workloads, show progress on standard error, and return their results.

    With `cluster` None clusters are started below `directory`, on whose disk the machine is
    calibrated. Raises ConfigurationError: workload and cluster do not fit; WaltzError: a
    transaction did not arrive; SystemExit: SIGTERM or SIGHUP came.
    """
    console = Console(stderr=True, highlight=False)
    results: list[Result] = []
    with ended_in_order(), console.status("") as status:
        shown = ProgressShown(console, status)
        with opened_targets(cluster, tls, directory, shown) as targets:
            for result in measure(workloads, targets, shown, directory):
                results.append(result)
                on_result(result)
    return results


def report(results: Sequence[Result], load: float) -> dict[str, Any]:
    """Return the JSON object: the state of the machine, and the results in their order."""
    return {
        "cores": os.cpu_count(),
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "results": [each.to_json() for each in results],
    }
