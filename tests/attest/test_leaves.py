"""Leaves: the bytes that are hashed, and that hashing columns is hashing entries."""

from __future__ import annotations

from hashlib import sha256

from tests.attest.trees import CLUSTER, PARTITION, block_of
from waltz.attest.leaves import Leaves
from waltz.attest.merkle import leaf_hash
from waltz.record import batch_from_block
from waltz.types import TransactionId

LEAVES = Leaves(CLUSTER, PARTITION)


def test_an_entry_is_the_place_and_the_record_without_its_checksum() -> None:
    record = block_of(0, 1, b"data")
    place = bytes.fromhex("00112233445566778899aabbccddeeff00000003")
    assert LEAVES.entry(record) == place + record[:-4]
    assert leaf_hash(LEAVES.entry(record)) == sha256(b"\0" + place + record[:-4]).digest()


def test_the_hashes_of_a_batch_are_those_of_its_records() -> None:
    batch = batch_from_block(block_of(5, 40, b"x"), TransactionId(5))
    records = [
        batch.block[start:end]
        for start, end in zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True)
    ]
    assert LEAVES.hashes(batch) == b"".join(leaf_hash(LEAVES.entry(each)) for each in records)
