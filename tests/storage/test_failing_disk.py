"""Every operation of a node meets every failure of its disk, at every place where it can happen:
nothing that was answered is lost, nothing that was refused counts, and work goes on (SN-09, C4)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tests.shares import one_in
from tests.storage import failing_disk
from tests.storage.failing_disk import (
    COLUMNS,
    DEEDS,
    FAILURES,
    OUTCOMES,
    SESSION,
    ZERO,
    Case,
    Deed,
    Situation,
    Verdict,
    busy,
    judge,
    main,
    page,
    row,
    verdicts,
)
from tests.storage.recorded_work import Found, read_log
from tests.storage.support import t
from waltz.errors import SegmentFailedError
from waltz.record import batch_from_block
from waltz.sim.simulated_disk import DiskOperation, Fault, SimulatedDisk, fail_nth
from waltz.wire.storage_protocol import (
    FailureResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
)

PAGE = Path(__file__).parents[2] / "docs" / "design" / "failing-disk.md"
PRINT_IT = "print the page anew: python -m tests.storage.failing_disk > docs/design/failing-disk.md"


@pytest.mark.parametrize("deed", one_in(4, DEEDS), ids=lambda deed: deed.name)
def test_whatever_fails_answers_are_true_and_work_goes_on(deed: Deed) -> None:
    found = [verdict for failure in FAILURES for verdict in verdicts(deed, failure)]
    assert [breach for verdict in found for breach in verdict.breaches] == []
    assert row(deed, found) in PAGE.read_text().splitlines(), PRINT_IT


def test_the_page_has_all_rows_in_order_and_nothing_else() -> None:
    lines = PAGE.read_text().splitlines()
    rows = [line for deed in DEEDS for line in lines if line.startswith(f"| {deed.name} | ")]
    assert len(rows) == len(DEEDS)
    assert PAGE.read_text() == page(rows), PRINT_IT


def fail(situation: Situation, fault: Fault, request: StorageMessage) -> None:
    situation.disk.fault = fault
    (answer,) = situation.ask(request)
    situation.disk.fault = None
    assert isinstance(answer, FailureResponse), answer


def restarted(disk: SimulatedDisk) -> Situation:
    disk.release_locks()
    situation = Situation(disk)
    situation.open()
    return situation


def test_what_is_only_seen_after_a_failed_sync_is_durable_before_anybody_is_told_of_it() -> None:
    """The next process finds the record in the system's memory, which counts as written there."""
    situation = busy()
    fail(situation, fail_nth(DiskOperation.SYNC, 1, done=0.0), situation.append(300))
    after = restarted(situation.disk)
    found = read_log(after.partition)
    assert after.partition.log.next_transaction_id == 59
    for seed in range(20):
        assert read_log(restarted(after.disk.crash_clone(Random(seed))).partition) == found


@pytest.mark.parametrize("suffix", [".idx", ".seg", ""])
def test_files_that_cannot_be_read_are_neither_cut_nor_made_anew(suffix: str) -> None:
    """Nobody knows what is in them, and the next start may read it."""
    situation = busy()
    before = situation.disk.contents()
    log = read_log(situation.partition)

    def unreadable(operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.READ and "/0/" in path and path.endswith(suffix):
            raise OSError(errno.EIO, "unreadable", path)

    situation.disk.fault = unreadable
    restarted(situation.disk)
    situation.disk.fault = None
    for path, data in before.items():
        if path.endswith(".seg"):
            assert situation.disk.content(path) == data, path
    assert read_log(restarted(situation.disk).partition) == log


def test_reading_goes_on_after_a_failed_truncation() -> None:
    situation = busy()
    log = read_log(situation.partition)
    for number in (1, 2, 3):
        situation = busy()
        fault = fail_nth(DiskOperation.SYNC, number, done=0.0)
        fail(situation, fault, TruncateRequest(SESSION, 1, ZERO, t(56), False))
        left = read_log(situation.partition)
        assert log.startswith(left)
        assert len(batch_from_block(left, t(0))) >= 57


def test_a_partition_that_could_not_be_given_up_does_not_vote_as_if_it_were_empty() -> None:
    situation = busy()
    situation.disk.fault = fail_nth(DiskOperation.WRITE, 1)
    with pytest.raises(SegmentFailedError):
        situation.partition.unassign(delete_files=True)
    situation.disk.fault = None
    (answer,) = situation.ask(MaxTransactionIdRequest(SESSION, 1, ZERO, offline=False))
    assert isinstance(answer, MaxTransactionIdResponse), answer
    assert answer.transaction_id == 57


def append_deed() -> Deed:
    return next(deed for deed in DEEDS if deed.name == "append")


def case(column: str, number: int = 1, deed: Deed | None = None) -> Case:
    failure = next(failure for failure in FAILURES if failure.column == column)
    return Case(deed or append_deed(), failure, number)


def test_a_failure_that_is_not_met_is_no_trial() -> None:
    assert judge(case("sync", 50)) is None
    assert judge(case("rename")) is None


def trusting(situation: Situation) -> Sequence[StorageMessage]:
    """A node that answers before it knows."""
    request = situation.append(10)
    situation.ask(request)
    return [SuccessResponse(request.session_id, request.sequence_number, request.partition_id)]


def test_an_answer_that_rests_on_a_failed_write_or_sync_is_found() -> None:
    deed = Deed("trusting append", busy, trusting)
    for column in ("write", "sync"):
        verdict = judge(case(column, deed=deed))
        assert verdict is not None
        assert [text for text in verdict.breaches if "; after a power cut: promised" in text]
        assert all(text.startswith(f"{verdict.case}: closed; ") for text in verdict.breaches)


def test_a_node_that_cannot_go_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(disk: SimulatedDisk, seed: object) -> list[Found]:
        return [Found(problem="it does not open")]

    monkeypatch.setattr(failing_disk, "look", look)
    verdict = judge(case("sync"))
    assert verdict is not None
    assert [breach for breach in verdict.breaches if breach.endswith(": it does not open")]


def test_a_row_names_each_outcome_once_under_its_failure() -> None:
    deed = append_deed()
    found = [
        Verdict(case("sync", number), outcome, ())
        for number, outcome in enumerate(("closed", "done", "closed"))
    ]
    cells = row(deed, found).strip("| ").split(" | ")
    assert cells == ["append", *("done, closed" if name == "sync" else "-" for name in COLUMNS)]


def test_the_command_prints_the_page_and_tells_of_breaches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading = [deed for deed in DEEDS if deed.name == "list"]
    monkeypatch.setattr(failing_disk, "DEEDS", reading)
    assert main() == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.count("| list |") == 1
    assert all(f"| {word} | {meaning} |" in printed.out for word, meaning in OUTCOMES.items())
    monkeypatch.setattr(failing_disk, "DEEDS", [Deed("trusting append", busy, trusting)])
    monkeypatch.setattr(failing_disk, "FAILURES", FAILURES[:1])
    assert main() == 1
    assert "trusting append; write, nothing written, number 1: " in capsys.readouterr().err
