"""The plot of latencies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.results import result, samples
from waltz.bench.plot import NINES, POINTS, curve, write_plot
from waltz.bench.results import Round
from waltz.errors import ConfigurationError


def test_the_curve_goes_from_the_least_to_almost_the_most() -> None:
    places, milliseconds = curve(samples(*range(1, 101)))
    assert len(places) == len(milliseconds) == POINTS
    assert (places[0], milliseconds[0]) == (0.0, 1.0)
    assert (places[-1], milliseconds[-1]) == (NINES, 100.0)
    assert milliseconds == sorted(milliseconds)


def test_a_plot_is_an_svg(tmp_path: Path) -> None:
    path = tmp_path / "latency.svg"
    timed = result(Round(2, 1.0, latency=samples(1.0, 2.0)))
    write_plot([timed, result(Round(2, 1.0), verb="read", prefill=4)], path)
    text = path.read_text()
    assert "<svg" in text
    assert "percentile" in text


def test_what_cannot_be_plotted_or_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing to plot"):
        write_plot([result(Round(2, 1.0), verb="read", prefill=4)], tmp_path / "x.svg")
    timed = result(Round(2, 1.0, latency=samples(1.0, 2.0)))
    with pytest.raises(ConfigurationError, match="cannot write"):
        write_plot([timed], tmp_path / "none" / "x.svg")
    with pytest.raises(ConfigurationError, match="cannot write"):
        write_plot([timed], tmp_path / "x.nothing")
