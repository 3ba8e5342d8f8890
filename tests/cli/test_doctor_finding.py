"""The result of a check."""

from __future__ import annotations

import pytest

from waltz.cli.doctor.finding import Checked, verdict

WELL = Checked("clock", "", True, "synchronized")
WRONG = Checked("port", "a:1", False, "in use", "another process", "end it")
UNKNOWN = Checked("clock", "", None, "not synchronized", "no source", "run chrony")


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ((), True),
        ((WELL,), True),
        ((WELL, UNKNOWN), None),
        ((WELL, UNKNOWN, WRONG), False),
    ],
)
def test_what_is_wrong_outweighs_what_is_unknown(
    findings: tuple[Checked, ...], expected: bool | None
) -> None:
    assert verdict(findings) is expected


def test_a_finding_that_is_not_well_has_a_cause_and_a_remedy() -> None:
    with pytest.raises(AssertionError):
        Checked("port", "a:1", False, "in use")
    assert [*WRONG.lines()] == [
        "WRONG   port a:1: in use",
        "        cause: another process",
        "        remedy: end it",
    ]
    assert [*WELL.lines()] == ["well    clock: synchronized"]
