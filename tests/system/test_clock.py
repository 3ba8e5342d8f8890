"""The real clocks."""

from __future__ import annotations

from waltz.system.clock import RealClock


def test_the_clock_never_goes_back() -> None:
    clock = RealClock()
    readings = [clock.now() for _ in range(1000)]
    assert readings == sorted(readings)


def test_wall_time_is_in_milliseconds_since_1970() -> None:
    year_2020, year_2100 = 1_577_836_800_000, 4_102_444_800_000
    assert year_2020 < RealClock().wall_milliseconds() < year_2100
