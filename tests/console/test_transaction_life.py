"""The words for a transaction and for each of its copies."""

from __future__ import annotations

from dataclasses import replace

from tests.console.details import WALL, absent, explanation
from tests.console.states import node_id
from waltz.console.picture import Health
from waltz.console.transaction_life import DATA_BYTES_MAX, REFUSALS_LISTED_MAX, life_of
from waltz.operators.explanation_shell import Copy, CopyStanding
from waltz.types import TransactionId
from waltz.wire.report_protocol import RefusalEntry


def test_each_copy_is_as_its_node_has_just_read_it() -> None:
    expected = {
        CopyStanding.SAME: (Health.WELL, "has it, read and checked now"),
        CopyStanding.DIFFERENT: (Health.DOWN, "differs: why"),
        CopyStanding.MISSING: (Health.IMPAIRED, "does not have it: why"),
        CopyStanding.REFUSED: (Health.DOWN, "does not give it: why"),
        CopyStanding.UNKNOWN: (Health.UNKNOWN, "unknown: why"),
    }
    for standing, shown in expected.items():
        text = "" if standing is CopyStanding.SAME else "why"
        (copy,) = life_of(explanation(copies=(Copy(node_id(0), standing, text),))).copies
        assert (copy.health, copy.text) == shown
        assert copy.durable == "between 2026-09-21T14:13:20.000Z and 2026-09-21T14:13:20.002Z"
        assert copy.session_id == 7


def test_a_time_that_is_not_recorded_or_doubtful_is_said() -> None:
    times = explanation().times
    assert life_of(explanation()).copies[2].durable == "not recorded: connection refused"
    unknown = replace(times, not_before=None, not_after=None)
    assert life_of(explanation(times=unknown)).durable == "not recorded"
    apart = replace(times, not_before=None, apart_milliseconds=1500)
    assert life_of(explanation(times=apart)).durable == (
        "before 2026-09-21T14:13:20.002Z; the times of the copies are 1.5 s apart: some came later,"
        " or clocks disagree"
    )
    assert times.not_before == WALL


def test_a_transaction_is_absent_only_if_a_majority_says_so() -> None:
    gone = life_of(absent(0, 99))
    assert (gone.is_committed, gone.request_id, gone.data) == (False, None, None)
    assert gone.verdict == "There is none: the partition ends with transaction 41."
    unsure = life_of(replace(absent(0, 99), copies=explanation().copies))
    assert (unsure.is_committed, unsure.health) == (None, Health.UNKNOWN)
    assert unsure.verdict.startswith("Nobody can say whether it is committed: the server knows")


def test_only_the_beginning_of_data_and_of_refusals_is_kept() -> None:
    report = explanation().refusals
    assert report is not None
    many = tuple(
        RefusalEntry(report.refusals[0].request_id, 1, TransactionId(2), True, 10)
        for _ in range(REFUSALS_LISTED_MAX + 9)
    )
    found = life_of(explanation(0, 17, b"x" * 10**6, refusals=replace(report, refusals=many)))
    assert found.size == 10**6
    assert found.data is not None
    assert len(found.data) < DATA_BYTES_MAX + 100
    assert found.refusals is not None
    assert (len(found.refusals), found.refusals_count) == (REFUSALS_LISTED_MAX, len(many))
