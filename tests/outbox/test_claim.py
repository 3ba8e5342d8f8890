"""The state of a relay as it is kept, and which rows may be claimed together."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz import ClientId, PartitionId, TransactionId
from waltz.errors import CorruptionError
from waltz.outbox.claim import CLIENTS_MAX, ClaimedRow, RelayState, chosen
from waltz.outbox.outbox_row import OutboxRow, UnfitRow

P0, P1 = PartitionId(0), PartitionId(1)
KEY, OUTBOX = UUID(int=1), UUID(int=2)
STATE = RelayState(
    OUTBOX,
    KEY,
    4,
    {P1: TransactionId(17)},
    {P1: KEY},
    (ClientId(3), ClientId(9)),
    (ClaimedRow(5, P1, bytes(range(16))),),
)


def row(number: int, key: str, content: str = "", locks: str | None = None) -> OutboxRow:
    mark = None if locks is None else TransactionId(1)
    return OutboxRow(number, key, P0, 0, content.encode(), locks, mark=mark)


def numbers(rows: list[OutboxRow]) -> list[int]:
    return [each.row_id for each in rows]


def test_the_state_is_kept_in_these_bytes() -> None:
    """Golden: a relay of another release must read them."""
    assert STATE.encode() == (
        b'{"format":1,"outbox":"00000000-0000-0000-0000-000000000002",'
        b'"cluster":"00000000-0000-0000-0000-000000000001","partition_count":4,'
        b'"marks":{"1":17},"histories":{"1":"00000000-0000-0000-0000-000000000001"},'
        b'"clients":[3,9],"claim":[[5,1,"AAECAwQFBgcICQoLDA0ODw=="]]}'
    )
    assert RelayState.decode(STATE.encode()) == STATE


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"claim": [[1, 2]]},
        {"claim": [[1, 2, "AA=="]]},
        {"marks": []},
        {"histories": {"1": "x"}},
        {"clients": None},
        {"outbox": 3},
    ],
)
def test_a_state_of_another_format_is_refused(change: dict[str, object]) -> None:
    damaged = json.dumps(json.loads(STATE.encode()) | change).encode()
    with pytest.raises(CorruptionError, match="expected format 1"):
        RelayState.decode(damaged)


@pytest.mark.parametrize("data", [b"", b"null", b"[" * 100_000, b"\xff"])
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        RelayState.decode(data)


def test_a_relay_that_takes_over_is_added_and_a_new_claim_has_its_maker_only() -> None:
    taken = STATE.taken_over(ClientId(10))
    assert taken.clients == (3, 9, 10)
    assert taken.claim == STATE.claim
    new = taken.claiming([row(8, "a")], {P0: TransactionId(2)}, ClientId(10), UUID(int=4))
    assert new.clients == (10,)
    assert [each.row_id for each in new.claim] == [8]
    assert new.marks == {P0: 2, P1: 17}
    assert new.histories == {P0: UUID(int=4), P1: KEY}


def test_a_claim_that_is_taken_over_without_end_is_an_error() -> None:
    crowded = RelayState(OUTBOX, KEY, 1, clients=tuple(map(ClientId, range(CLIENTS_MAX))))
    with pytest.raises(CorruptionError, match="have taken over one claim"):
        crowded.taken_over(ClientId(1))


def test_rows_with_one_content_share_a_claim_only_if_they_are_interchangeable() -> None:
    assert numbers(chosen([row(1, "a", "x"), row(2, "a", "x")], [])) == [1, 2]
    assert numbers(chosen([row(1, "a", "x"), row(2, "b", "x"), row(3, "b", "y")], [])) == [1]
    with_lock = OutboxRow(2, "a", P0, 0, b"x", '{"append":[["l",1]]}')
    assert numbers(chosen([row(1, "a", "x"), with_lock], [])) == [1]
    other_partition = OutboxRow(2, "b", P1, 0, b"x")
    assert numbers(chosen([row(1, "a", "x"), other_partition], [])) == [1, 2]


def test_nothing_of_a_key_passes_a_row_that_is_held_or_unfit() -> None:
    rows = [row(1, "a", "1"), row(3, "a", "3"), row(4, "b", "4"), row(5, "c", "5")]
    unfit = [UnfitRow(2, "a", "why"), UnfitRow(9, "a", "why")]
    assert numbers(chosen(rows, unfit, {"c"})) == [1, 4]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"))))
def test_what_is_left_of_a_key_is_its_end(made: list[tuple[str, str]]) -> None:
    """Whatever is chosen, no row is chosen behind one of its key that is left; and two chosen rows
    with one content have one key."""
    rows = [row(number, key, content) for number, (key, content) in enumerate(made)]
    found = chosen(rows, [])
    for key in "abc":
        of_key = [each for each in rows if each.key == key]
        taken = [each for each in found if each.key == key]
        assert taken == of_key[: len(taken)]
    keys: dict[bytes, set[str]] = {}
    for each in found:
        keys.setdefault(each.digest, set()).add(each.key)
    assert all(len(each) == 1 for each in keys.values())
    assert found or not rows
