"""The trace is one value for what happened; comments are for people and do not count."""

from __future__ import annotations

from waltz.sim.judges.run_trace import RunTrace


def trace(*facts: object) -> RunTrace:
    made = RunTrace()
    made.note(0.5, "bytes", *facts)
    return made


def test_equal_traces_have_equal_digests_and_others_do_not() -> None:
    assert trace("a", 1).digest() == trace("a", 1).digest()
    assert len({trace("a", 1).digest(), trace("a", 2).digest(), trace("b", 1).digest()}) == 3


def test_comments_appear_in_their_place_and_do_not_change_the_digest() -> None:
    commented = RunTrace()
    commented.comment(0.25, "before")
    commented.note(0.5, "bytes", "a", 1)
    commented.comment(0.75, "after")
    assert commented.digest() == trace("a", 1).digest()
    lines = [line.split(maxsplit=1) for line in commented.lines()]
    assert lines == [["0.250000", "# before"], ["0.500000", "bytes a 1"], ["0.750000", "# after"]]
