"""Bridges of real processes that are killed, with a real receiver and a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bridge.judge import Fact, faults, repeats
from tests.bridge.kills import run


def test_a_receiver_has_the_log_although_the_bridge_is_killed(tmp_path: Path) -> None:
    assert run(tmp_path, 6, 3, print) > 0, "no post was repeated: nothing was shown"


@pytest.mark.long
def test_a_receiver_has_the_log_under_hundreds_of_kills(tmp_path: Path) -> None:
    assert run(tmp_path, 500, 4, print) > 0


LOG: list[list[Fact]] = [[(0, 1, b"a"), (1, 2, b"b"), (2, 1, b"c")], [(0, 7, b"d")]]


def test_the_judge_sees_each_fault() -> None:
    a, b, c = LOG[0]
    (d,) = LOG[1]
    assert faults(LOG, [[a, b, a, b, c, c], [d]]) == []
    assert repeats([[a, b, a, b, c, c], [d]]) == 3
    assert faults(LOG, [[a, b], [d]])
    assert faults(LOG, [[a, c, b], [d]])
    assert faults(LOG, [[a, c], [d]])
    assert faults(LOG, [[a, b, c], [d, (1, 1, b"never")]])
    assert faults(LOG, [[a, (1, 2, b"other"), c], [d]])
    assert faults(LOG, [[a, b, c, (1, 2, b"other")], [d]])
    assert faults(LOG, [[a, b, c], []])
