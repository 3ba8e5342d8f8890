"""A witness's decisions, by the sentences of the specification."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attest.test_merkle import hashes_of
from tests.attest.trees import known_key, some_leaves, tree_hash
from waltz.attest.checkpoints import Checkpoint
from waltz.attest.notes import KeyKind, Note, PublicKey, SecretKey
from waltz.attest.witness_judge import (
    NOTHING_SEEN,
    REQUEST_BYTES_MAX,
    AddCheckpoint,
    Cosign,
    Head,
    Refusal,
    judge,
    key_for,
    parse_request,
)
from waltz.errors import AttestationError

KEY = known_key("waltz/test", KeyKind.LOG)
LEAVES = some_leaves(40)
FORKED = [*LEAVES[:10], *some_leaves(30, salt=1)]


def checkpoint(size: int, leaves: list[bytes] = LEAVES) -> Checkpoint:
    return Checkpoint("waltz/test/0", size, tree_hash(leaves[:size]))


def request(
    old: int, size: int, leaves: list[bytes] = LEAVES, key: SecretKey = KEY
) -> AddCheckpoint:
    proof = hashes_of(leaves[:size]).consistency_proof(old) if 0 < old <= size else []
    return AddCheckpoint(old, tuple(proof), checkpoint(size, leaves).signed(key))


def head(size: int) -> Head:
    return Head(size, tree_hash(LEAVES[:size])) if size else NOTHING_SEEN


def decided(asked: AddCheckpoint, seen: Head, key: PublicKey | None = KEY.public_key) -> object:
    decision = judge(asked, key, seen)
    return decision.checkpoint if isinstance(decision, Cosign) else decision.status


@pytest.mark.parametrize(("old", "size"), [(0, 0), (0, 1), (0, 17), (1, 2), (17, 17), (17, 40)])
def test_a_checkpoint_that_extends_what_was_seen_is_cosigned(old: int, size: int) -> None:
    assert decided(request(old, size), head(old)) == checkpoint(size)


def test_a_fork_is_not_cosigned() -> None:
    assert decided(request(10, 30, FORKED), head(10)) == checkpoint(30, FORKED)
    assert decided(request(20, 30, FORKED), head(20)) == 422
    assert decided(request(20, 20, FORKED), head(20)) == 409


def test_another_size_than_the_newest_is_answered_with_the_newest() -> None:
    for old in (0, 9, 11):
        decision = judge(request(old, 30), KEY.public_key, head(10))
        assert isinstance(decision, Refusal)
        assert (decision.status, decision.text, decision.cosigned_size) == (409, "10", 10)


def test_an_unknown_log_is_not_found_and_a_foreign_signature_forbidden() -> None:
    assert decided(request(0, 5), NOTHING_SEEN, None) == 404
    other = SecretKey.generate("waltz/test", KeyKind.LOG)
    assert decided(request(0, 5, key=other), NOTHING_SEEN) == 403
    forged = other.sign("x")._replace(key_id=KEY.public_key.key_id)
    note = Note(checkpoint(5).text(), (forged,))
    assert decided(AddCheckpoint(0, (), note), NOTHING_SEEN) == 403


def test_what_is_no_checkpoint_or_has_an_old_size_above_its_own_is_a_bad_request() -> None:
    note = Note("no checkpoint\n", (KEY.sign("no checkpoint\n"),))
    assert decided(AddCheckpoint(0, (), note), NOTHING_SEEN) == 400
    assert decided(request(9, 5), head(9)) == 400


def test_a_wrong_proof_is_unprocessable() -> None:
    asked = request(10, 30)
    assert decided(AddCheckpoint(10, asked.proof[:-1], asked.note), head(10)) == 422
    assert decided(AddCheckpoint(10, asked.proof[::-1], asked.note), head(10)) == 422
    assert decided(AddCheckpoint(0, asked.proof, asked.note), NOTHING_SEEN) == 422


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=12))
def test_no_two_trees_that_part_are_ever_cosigned(asked: list[tuple[int, bool]]) -> None:
    seen = NOTHING_SEEN
    cosigned = []
    for size, is_fork in asked:
        leaves = FORKED if is_fork else LEAVES
        decision = judge(request(min(seen.size, size), size, leaves), KEY.public_key, seen)
        if isinstance(decision, Cosign):
            seen = Head(decision.checkpoint.size, decision.checkpoint.root)
            cosigned.append(seen)
    assert [each.size for each in cosigned] == sorted(each.size for each in cosigned)
    of_forks = {each.size > 10 and each != head(each.size) for each in cosigned if each.size > 10}
    assert len(of_forks) <= 1


def test_a_request_is_read_from_its_text() -> None:
    asked = request(10, 30)
    hashes = "".join(f"{base64.b64encode(each).decode()}\n" for each in asked.proof)
    assert parse_request(f"old 10\n{hashes}\n{asked.note}".encode()) == asked
    first = request(0, 30)
    assert parse_request(f"old 0\n\n{first.note}".encode()) == first


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"old 0\n",
        b"old 0\n\n",
        b"old 00\n\nx\n\n\xe2\x80\x94 a AAAAAAAA\n",
        b"old -1\n\nx\n\n\xe2\x80\x94 a AAAAAAAA\n",
        b"new 0\n\nx\n\n\xe2\x80\x94 a AAAAAAAA\n",
        b"old 0\nAAAA\n\nx\n\n\xe2\x80\x94 a AAAAAAAA\n",
        b"old 0\n" + b"A" * 43 + b"=\n" * 70 + b"\nx\n\n\xe2\x80\x94 a AAAAAAAA\n",
        b"old \xff\n\nx\n\n\xe2\x80\x94 a AAAAAAAA\n",
        b"x" * (REQUEST_BYTES_MAX + 1),
    ],
)
def test_what_is_not_a_request_is_refused(content: bytes) -> None:
    with pytest.raises(AttestationError):
        parse_request(content)


def test_one_key_signs_for_all_partitions_of_its_cluster_and_for_no_other_name() -> None:
    keys = [KEY.public_key]
    assert key_for("waltz/test", keys) == key_for("waltz/test/7", keys) == KEY.public_key
    assert key_for("waltz/test7", keys) is None
    assert key_for("waltz", keys) is None
