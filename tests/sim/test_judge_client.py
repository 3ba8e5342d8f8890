"""The judge appends to every partition last, and is fed what everybody was fed."""

from __future__ import annotations

from waltz.sim.applications.judge_client import JUDGE
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.sim.scenario import draw_scenario
from waltz.sim.simulation import _Run
from waltz.types import PartitionId


def test_the_judge_has_appended_to_every_partition_and_read_what_everybody_was_fed() -> None:
    run = _Run(draw_scenario(4, "append", "server_crash"), 1_000.0)
    outcome = run.outcome()
    assert outcome.violations == ()
    assert outcome.writable_seconds == run.judge.writable_seconds > 0.0
    assert run.field.peace.is_set()
    written = [each for each in run.history.submissions.values() if each.client == JUDGE]
    partitions = range(outcome.scenario.shape.partition_count)
    assert {each.partition_id for each in written} == {*map(PartitionId, partitions)}
    payloads = [Payload.decode(each.written[-1][1]) for each in written]
    assert {each.kind for each in payloads if each is not None} == {EntryKind.NOTE}
    fed = run.history.feeds[JUDGE]
    for name in outcome.scenario.client_names:
        for partition_id, records in run.history.feeds.get(name, {}).items():
            assert len(records) <= len(fed[partition_id])


def test_without_an_end_of_the_work_there_is_no_peace() -> None:
    run = _Run(draw_scenario(1, "append", "none"), 2.5)
    assert run.outcome().violations
    assert not run.field.peace.is_set()
    assert run.judge.writable_seconds == 0.0
