"""The judge of cuts finds what is not closed, by what users were shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waltz.sim.judges.causality import check_cuts
from waltz.sim.judges.history import FedRecord, History
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

P0, P1 = PartitionId(0), PartitionId(1)


class Run:
    """Transactions that are executed one after the other, each of one attempt."""

    def __init__(self) -> None:
        self.history = History()
        self.log: dict[PartitionId, list[FedRecord]] = {P0: [], P1: []}

    def append(
        self,
        partition_id: PartitionId,
        kind: EntryKind = EntryKind.NOTE,
        entries: tuple[tuple[int, int], ...] = (),
    ) -> int:
        context = self.history.submit("a", partition_id)
        self.history.submissions[context].based_on.append(dict(self.history.shown))
        place = TransactionId(len(self.log[partition_id]))
        request_id = RequestId(ClientId(1), Generation(1), partition_id, context)
        data = Payload(context, 1, kind, entries=entries).encode()
        self.log[partition_id].append(FedRecord(place, request_id, 0, data))
        return context

    def judge(self, *marks: int) -> list[str]:
        cut: Mapping[PartitionId, TransactionId] = {
            PartitionId(number): TransactionId(mark) for number, mark in enumerate(marks)
        }
        log: Mapping[PartitionId, Sequence[FedRecord]] = self.log
        return check_cuts([cut], self.history, log)


def test_an_effect_without_its_cause_is_found() -> None:
    run = Run()
    run.append(P0)
    run.history.show(P0, TransactionId(0))
    run.append(P1)
    assert run.judge(-1, -1) == run.judge(0, -1) == run.judge(0, 0) == []
    assert run.judge(-1, 0) == [
        (
            "cuts: transaction 0 of partition 1 was executed after transaction 0 of partition 0 had"
            " been shown, cut {0: -1, 1: 0}"
        )
    ]


def test_what_nobody_was_shown_is_no_cause() -> None:
    run = Run()
    run.append(P0)
    run.append(P1)
    run.history.show(P0, TransactionId(0))
    assert run.judge(-1, 0) == []


def test_an_older_sight_does_not_take_back_a_newer_one() -> None:
    run = Run()
    run.append(P0)
    run.append(P0)
    run.history.show(P0, TransactionId(1))
    run.history.show(P0, TransactionId(0))
    run.append(P1)
    assert len(run.judge(0, 0)) == 1


def test_a_mark_beyond_the_log_and_a_partition_that_is_left_out_are_found() -> None:
    run = Run()
    run.append(P0)
    assert run.judge(1, -1) == [
        "cuts: 1 is none of partition 0, whose last transaction is 0, cut {0: 1, 1: -1}"
    ]
    run.history.show(P1, TransactionId(0))
    run.append(P0)
    assert len(run.judge(1)) == 1


def test_a_credit_without_its_debit_makes_money() -> None:
    run = Run()
    debit = run.append(P0, EntryKind.DEBIT, ((3, 50), (255, -1)))
    run.append(P1, EntryKind.CREDIT, ((4, 50), (255, debit)))
    assert run.judge(0, 0) == run.judge(0, -1) == []
    assert run.judge(-1, 0) == [
        (
            "cuts: transaction 0 of partition 1 credits 50, and its debit, context 1, is not there,"
            " cut {0: -1, 1: 0}"
        )
    ]
    run.append(P1, EntryKind.CREDIT, ((4, 50), (255, debit)))
    assert len(run.judge(0, 1)) == 1, "a second credit of one debit"
    run = Run()
    debit = run.append(P0, EntryKind.DEBIT, ((3, 50), (255, -1)))
    run.append(P1, EntryKind.CREDIT, ((4, 60), (255, debit)))
    assert len(run.judge(0, 0)) == 1, "more than was taken"
