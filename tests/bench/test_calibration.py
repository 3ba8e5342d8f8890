"""What the machine does by itself."""

from __future__ import annotations

import platform
from dataclasses import astuple
from pathlib import Path

from tests.bench.results import CALIBRATION
from waltz.bench.calibration import ENTRIES, Noting, calibrate, measure_syncs, timed


def test_every_part_is_measured_and_nothing_is_left_behind(tmp_path: Path) -> None:
    found = calibrate(tmp_path)
    assert all(value > 0 for value in astuple(found) if isinstance(value, float))
    assert found.python == f"{platform.python_implementation()} {platform.python_version()}"
    assert found.sync_seconds <= found.sync_seconds_p99
    assert list(tmp_path.iterdir()) == []


def test_as_many_syncs_are_timed_as_asked_for(tmp_path: Path) -> None:
    assert len(measure_syncs(tmp_path, 512, 7)) == 7


def test_a_function_is_called_in_five_rounds() -> None:
    called: list[None] = []
    assert timed(lambda: called.append(None), 3) >= 0
    assert len(called) == 15


def test_what_is_noted_is_found_once_its_place_is_taken_again() -> None:
    noting = Noting()
    assert [noting.note() for _ in range(ENTRIES)] == [None] * ENTRIES
    assert [noting.note(), noting.note()] == [(0, 0), (1, 1)]


def test_the_lines_give_each_figure_with_its_unit() -> None:
    assert CALIBRATION.lines() == [
        "calibration: write + fdatasync of 4 KiB 1000 us, p99 2000 us",
        "calibration: write + fdatasync of 1 MiB 3000 us",
        "calibration: loopback echo of 128 B 10 us",
        "calibration: crc32 of 1 MiB 400 us",
        "calibration: struct.pack + crc32 of 128 B 1000 ns",
        "calibration: CPython 3.11.7, a method call 200 ns",
    ]
