"""Proofs as files: their text, and that nothing changed in one still proves anything."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attest.trees import CLUSTER, PARTITION, MemoryBlocks, MemoryFiles, block_of, known_key
from waltz.attest.attester import Attester, prove
from waltz.attest.inclusion import (
    PROOF_BYTES_MAX,
    Cosigned,
    InclusionProof,
    parse_proof,
    verify,
)
from waltz.attest.merkle import TreeHashes
from waltz.attest.notes import KeyKind, Note, SecretKey, Signature
from waltz.attest.tree_files import TreeFiles
from waltz.errors import AttestationError
from waltz.types import PartitionId, TransactionId

KEY = known_key("waltz/test", KeyKind.LOG)
WITNESSES = [known_key(f"witness.example/{name}", KeyKind.WITNESS) for name in "ab"]
BLOCKS = MemoryBlocks([block_of(number, 1, b"some data") for number in range(300)])


def cosign(note: Note, tree: TreeHashes) -> list[Signature]:
    return [each.sign(note.text, 1_700_000_000) for each in WITNESSES]


def made(transaction_id: int) -> InclusionProof:
    files = TreeFiles(MemoryFiles(), PARTITION)
    attester = Attester(files, CLUSTER, PARTITION, KEY)
    attester.extend(BLOCKS, TransactionId(300))
    attester.cosign(cosign)
    return prove(files, BLOCKS, CLUSTER, PARTITION, TransactionId(transaction_id))


PROOF = made(200)


def test_a_proof_shows_the_record_and_who_has_cosigned() -> None:
    proof = parse_proof(str(PROOF).encode())
    assert proof == PROOF
    proven = verify(proof, KEY.public_key, [each.public_key for each in WITNESSES], 2)
    assert (proven.cluster_key, proven.partition_id) == (CLUSTER, PARTITION)
    assert (proven.record.transaction_id, proven.record.data) == (200, b"200:some data")
    assert proven.checkpoint.size == 300
    assert proven.cosigned == tuple(
        Cosigned(each.public_key.name, 1_700_000_000) for each in WITNESSES
    )


def test_the_text_is_that_of_the_specification() -> None:
    lines = str(PROOF).split("\n")
    assert lines[0] == "c2sp.org/tlog-proof@v1"
    assert base64.b64decode(lines[1].removeprefix("extra ")) == PROOF.entry
    assert lines[2] == "index 200"
    assert [base64.b64decode(each) for each in lines[3 : 3 + len(PROOF.path)]] == [*PROOF.path]
    assert lines[3 + len(PROOF.path)] == ""
    assert lines[4 + len(PROOF.path)] == f"waltz/{CLUSTER}/{PARTITION}"


def test_too_few_witnesses_are_refused_and_one_key_given_twice_is_one() -> None:
    keys = [WITNESSES[0].public_key] * 2
    with pytest.raises(AttestationError, match="cosigned by 1 of the known witnesses; 2 are asked"):
        verify(PROOF, KEY.public_key, keys, 2)
    assert len(verify(PROOF, KEY.public_key, keys, 1).cosigned) == 1


def test_another_log_key_is_refused() -> None:
    other = SecretKey.generate("waltz/test", KeyKind.LOG)
    with pytest.raises(AttestationError, match="not signed by waltz/test"):
        verify(PROOF, other.public_key)


@given(st.data())
def test_no_changed_byte_proves_anything_else(data: st.DataObject) -> None:
    content = bytearray(str(PROOF).encode())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    keys = [each.public_key for each in WITNESSES]
    try:
        proven = verify(parse_proof(bytes(content)), KEY.public_key, keys, 2)
    except AttestationError:
        return
    assert proven == verify(PROOF, KEY.public_key, keys, 2), "the bytes say the same in base64"


def test_an_entry_of_another_place_is_refused() -> None:
    entry = bytearray(PROOF.entry)
    entry[19] ^= 1
    moved = InclusionProof(bytes(entry), PROOF.index, PROOF.path, PROOF.note)
    with pytest.raises(AttestationError, match="the entry of waltz/"):
        verify(moved, KEY.public_key)
    assert PartitionId(entry[19]) != PARTITION


def test_a_proof_of_another_transaction_is_refused() -> None:
    other = InclusionProof(PROOF.entry, 201, PROOF.path, PROOF.note)
    with pytest.raises(AttestationError, match="the entry is transaction 200; the proof is of 201"):
        verify(other, KEY.public_key)


def test_every_transaction_of_a_log_is_proven() -> None:
    files = TreeFiles(MemoryFiles(), PARTITION)
    Attester(files, CLUSTER, PARTITION, KEY).extend(BLOCKS, TransactionId(300))
    for number in range(300):
        proof = prove(files, BLOCKS, CLUSTER, PARTITION, TransactionId(number))
        assert verify(proof, KEY.public_key).record.transaction_id == number


def test_what_is_not_attested_yet_has_no_proof() -> None:
    files = TreeFiles(MemoryFiles(), PARTITION)
    with pytest.raises(AttestationError, match="newest checkpoint has 0 transactions"):
        prove(files, BLOCKS, CLUSTER, PARTITION, TransactionId(0))
    Attester(files, CLUSTER, PARTITION, KEY).extend(BLOCKS, TransactionId(10))
    with pytest.raises(AttestationError, match="newest checkpoint has 10 transactions"):
        prove(files, BLOCKS, CLUSTER, PARTITION, TransactionId(10))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"c2sp.org/tlog-proof@v1\n",
        str(PROOF).replace("@v1", "@v2").encode(),
        str(PROOF).replace("index 200", "index 0200").encode(),
        str(PROOF).replace("index 200", "place 200").encode(),
        str(PROOF).replace("extra ", "extra !").encode(),
        str(PROOF).replace("\n\n", "\n", 1).encode(),
        str(PROOF).replace("index 200", "index 200" + f"\n{'A' * 43}=" * 64).encode(),
        b"x" * (PROOF_BYTES_MAX + 1),
    ],
)
def test_what_is_not_a_proof_is_refused(content: bytes) -> None:
    with pytest.raises(AttestationError):
        verify(parse_proof(content), KEY.public_key)


def test_a_log_is_not_its_own_witness_and_a_witness_is_no_log() -> None:
    with pytest.raises(AttestationError, match="the key of a log, and witnesses nothing"):
        verify(PROOF, KEY.public_key, [KEY.public_key], 1)
    with pytest.raises(AttestationError, match="the key of a witness, and signs no log"):
        verify(PROOF, WITNESSES[0].public_key)


def test_a_witness_under_two_names_is_one_witness() -> None:
    same = [
        known_key("one secret", KeyKind.WITNESS, name="witness.example/a"),
        known_key("one secret", KeyKind.WITNESS, name="witness.example/alias"),
    ]
    text = PROOF.note.text
    note = Note(text, (KEY.sign(text), *(each.sign(text, 5) for each in same)))
    proof = InclusionProof(PROOF.entry, PROOF.index, PROOF.path, note)
    keys = [each.public_key for each in same]
    with pytest.raises(AttestationError, match="cosigned by 1 of the known witnesses; 2 are asked"):
        verify(proof, KEY.public_key, keys, 2)
    assert len(verify(proof, KEY.public_key, [keys[0], keys[0]], 1).cosigned) == 1
