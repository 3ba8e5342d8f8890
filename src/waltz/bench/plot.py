"""The plot of a run: latency by percentile, a line per workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from waltz.bench.results import Result, Samples
from waltz.errors import ConfigurationError

NINES: Final = 4.0
"""The axis ends at this many nines: 99.99 %."""

POINTS: Final = 200


def curve(samples: Samples) -> tuple[list[float], list[float]]:
    """Return places on the axis, in nines, and milliseconds there."""
    places = np.linspace(0.0, NINES, POINTS)
    quantiles = samples.quantiles(list(1.0 - 10.0**-places))
    return places.tolist(), [each * 1e3 for each in quantiles]


def write_plot(results: Sequence[Result], path: Path) -> None:
    """Write an SVG; the kind follows the file's name.

    Raises ConfigurationError: matplotlib is missing; nothing was timed; the file cannot be written.
    """
    timed = [
        (each.workload.name, samples) for each in results if (samples := each.samples()) is not None
    ]
    if not timed:
        raise ConfigurationError("nothing to plot: none of the workloads has latencies")
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is missing: run `pip install '.[report]'` in a checkout of Waltz"
        ) from error
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for name, samples in timed:
        axes.plot(*curve(samples), label=name)
    axes.set_yscale("log")
    axes.set_ylabel("latency, ms, from the intended time")
    axes.set_xlabel("percentile")
    nines = range(int(NINES) + 1)
    axes.set_xticks(list(nines), ["0", "90", "99", "99.9", "99.99"][: len(nines)])
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot write {path}: {error}") from error
