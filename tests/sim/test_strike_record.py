"""Faults that have struck are counted, and stand in the trace of the run."""

from __future__ import annotations

from waltz.sim.faults.kinds import SessionLoss
from waltz.sim.faults.strike_record import StrikeRecord
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.sites import Sites


def test_a_fault_that_has_struck_is_counted_by_its_kind_and_a_note_is_not() -> None:
    loop, trace = SimulatedLoop(1), RunTrace()
    record = StrikeRecord(Sites(loop, 1, trace))
    record.struck(SessionLoss(progress=0.0, name="node"), "node")
    record.note("resume", "node")
    assert record.counts == {"SessionLoss": 1}
    first, second = trace.lines()
    assert "SessionLoss" in first
    assert "resume" in second
    loop.shut_down()
