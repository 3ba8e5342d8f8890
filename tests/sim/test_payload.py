"""What a simulated transaction says of itself, and the state that a log of them makes."""

from __future__ import annotations

import pytest

from waltz.sim.judges.payload import OPENING_BALANCE, Accounts, EntryKind, Payload

FULL = Payload(
    context=7,
    attempt=3,
    kind=EntryKind.TRANSFER,
    mark=2**40,
    write_locks=(1, 2),
    read_locks=(3,),
    append_locks=(4, 5, 6),
    entries=((1, -5), (2, 2**50)),
    padding=b"pad",
)


@pytest.mark.parametrize("payload", [FULL, Payload(1, 1), Payload(1, 1, padding=b"x" * 1000)])
def test_payloads_come_back_as_they_were(payload: Payload) -> None:
    assert Payload.decode(payload.encode()) == payload
    assert Payload.context_of(payload.encode()) == payload.context


@pytest.mark.parametrize("data", [b"", b"WSIM", b"XSIM" + bytes(100)])
def test_foreign_data_is_no_payload(data: bytes) -> None:
    assert Payload.decode(data) is None
    assert Payload.context_of(data) is None


def test_what_a_transaction_changes_is_what_it_locks_for_others() -> None:
    assert [*FULL.keys_changed] == [1, 2, 4, 5, 6]


def test_accounts_are_a_fold_over_transfers_and_deposits() -> None:
    accounts = Accounts()
    for payload in (
        Payload(1, 1, EntryKind.DEPOSIT, entries=((1, 10),)),
        Payload(2, 1, EntryKind.TRANSFER, entries=((1, 70), (2, 140))),
        Payload(3, 1, EntryKind.DEPOSIT, entries=((1, 5),)),
        Payload(4, 1, EntryKind.AUDIT, entries=((1, 0), (2, 0))),
        Payload(5, 1, EntryKind.COUNT, entries=((1, 0),)),
    ):
        accounts.apply(payload)
    assert [accounts.balance(number) for number in (1, 2, 3)] == [75, 140, OPENING_BALANCE]
