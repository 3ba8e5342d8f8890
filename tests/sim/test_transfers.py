"""The workload of transfers and cuts does what it is for."""

from __future__ import annotations

from collections import Counter

import pytest

from waltz.sim.applications.transfers import REFERENCE, SIGHTS, client_number
from waltz.sim.judges import causality
from waltz.sim.judges.history import ContextVerdict
from waltz.sim.judges.payload import EntryKind, Payload
from waltz.sim.scenario import draw_scenario
from waltz.sim.simulation import _Run, simulate


def test_cuts_are_made_while_money_is_under_way() -> None:
    outcome = simulate(3, "transfers", "none")
    assert not outcome.violations
    assert outcome.cuts["made"] >= 3


def test_a_run_has_debits_of_all_clients_and_credits_that_name_them() -> None:
    run = _Run(draw_scenario(3, "transfers", "none"), 1_000.0)
    assert not run.outcome().violations
    kinds: Counter[EntryKind] = Counter()
    collectors: Counter[int] = Counter()
    for submission in run.history.submissions.values():
        for _, data in submission.written[-1:]:
            payload = Payload.decode(data)
            assert payload is not None
            if submission.has_ended(ContextVerdict.COMMITTED):
                kinds[payload.kind] += 1
            if payload.kind is EntryKind.DEBIT:
                collectors[dict(payload.entries)[REFERENCE]] += 1
    assert 0 < kinds[EntryKind.CREDIT] <= kinds[EntryKind.DEBIT]
    assert -1 in collectors
    assert len(collectors) > 1


def test_partitions_of_transfers_are_on_several_servers() -> None:
    for seed in range(20):
        shape = draw_scenario(seed, "transfers", "none").shape
        assert shape.partition_count >= 2
        assert shape.server_count >= 2


@pytest.mark.parametrize(("name", "number"), [("client-0", 0), ("client-12", 12)])
def test_the_number_of_a_client_is_in_its_name(name: str, number: int) -> None:
    assert client_number(name) == number


def test_the_judge_and_the_workload_agree_on_the_reference() -> None:
    assert causality.REFERENCE == REFERENCE
    assert len(SIGHTS) == len({*SIGHTS})
