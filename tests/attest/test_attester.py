"""The attester: killed at every write, and every change of records and tiles found."""

from __future__ import annotations

from zlib import crc32

import pytest

from tests.attest.trees import (
    CLUSTER,
    PARTITION,
    KilledError,
    MemoryBlocks,
    MemoryFiles,
    block_of,
    known_key,
    tree_hash,
)
from waltz.attest.attester import Attester, batches
from waltz.attest.checkpoints import Checkpoint, verified_checkpoint
from waltz.attest.leaves import Leaves
from waltz.attest.merkle import TreeHashes, leaf_hash
from waltz.attest.notes import KeyKind, Note, SecretKey, Signature
from waltz.attest.tree_files import TreeFiles
from waltz.errors import AttestationError, CorruptionError
from waltz.types import NOTHING, TransactionId

KEY = known_key("waltz/test", KeyKind.LOG)
LEAVES = Leaves(CLUSTER, PARTITION)
RECORDS = [block_of(number, 1, b"some data") for number in range(600)]
SIZES = (1, 30, 255, 256, 256, 300, 520, 600)


def attester(memory: MemoryFiles) -> Attester:
    return Attester(TreeFiles(memory, PARTITION), CLUSTER, PARTITION, KEY)


def root_of(size: int, records: list[bytes] = RECORDS) -> bytes:
    return tree_hash([leaf_hash(LEAVES.entry(each)) for each in records[:size]])


def full_tiles(memory: MemoryFiles) -> dict[str, bytes]:
    return {
        path: tile
        for path, tile in memory.content.items()
        if "/tile/" in path and ".p/" not in path
    }


def published(memory: MemoryFiles) -> Checkpoint | None:
    note = TreeFiles(memory, PARTITION).checkpoint()
    return None if note is None else verified_checkpoint(note, KEY.public_key)


def test_a_log_is_attested_as_it_grows() -> None:
    memory = MemoryFiles()
    earlier = 0
    for size in SIZES:
        attested = attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(size))
        assert (attested.earlier_size, attested.checkpoint.size) == (earlier, size)
        assert published(memory) == attested.checkpoint
        assert attested.checkpoint.root == root_of(size)
        earlier = size


def test_a_log_that_has_not_grown_is_not_signed_again() -> None:
    memory = MemoryFiles()
    attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(10))
    memory.dies_at = memory.writes
    attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(10))


def test_an_attester_killed_at_any_write_goes_on_and_never_signs_two_roots_of_a_size() -> None:
    whole = MemoryFiles()
    for size in SIZES:
        attester(whole).extend(MemoryBlocks(RECORDS), TransactionId(size))
    for dies_at in range(whole.writes):
        memory = MemoryFiles()
        signed: dict[int, bytes] = {}
        memory.dies_at = dies_at
        for size in SIZES:
            try:
                attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(size))
            except KilledError:
                memory.dies_at = None
            if (checkpoint := published(memory)) is not None:
                assert signed.setdefault(checkpoint.size, checkpoint.root) == checkpoint.root
        attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(600))
        assert full_tiles(memory) == full_tiles(whole)
        assert published(memory) == published(whole)


def test_a_log_whose_attested_beginning_was_changed_gets_no_checkpoint() -> None:
    memory = MemoryFiles()
    attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(300))
    before = published(memory)
    memory.content = {
        path: content[:-1] + b"x" if path.endswith("tile/0/001.p/44") else content
        for path, content in memory.content.items()
    }
    with pytest.raises(AttestationError, match="a tile was changed"):
        attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(400))
    assert published(memory) == before


def test_an_attester_that_was_killed_goes_on_only_with_the_same_records() -> None:
    memory = MemoryFiles()
    memory.dies_at = 1
    with pytest.raises(KilledError):
        attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(600))
    memory.dies_at = None
    others = [block_of(0, 1, b"other data"), *RECORDS[1:]]
    with pytest.raises(AttestationError, match="other hashes than the records"):
        attester(memory).extend(MemoryBlocks(others), TransactionId(600))
    assert published(memory) is None


def test_a_checkpoint_is_cosigned_where_it_lacks_a_signature() -> None:
    memory = MemoryFiles()
    witness = SecretKey.generate("witness.example/w", KeyKind.WITNESS)
    asked: list[Note] = []

    def ask(note: Note, tree: TreeHashes) -> list[Signature]:
        asked.append(note)
        assert tree.root() == root_of(300)
        return [] if len(note.signatures) > 1 else [witness.sign(note.text, 17)]

    assert attester(memory).cosign(ask) is None
    attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(300))
    for _ in range(2):
        note = attester(memory).cosign(ask)
        assert note is not None
        assert witness.public_key.verified_time(note) == 17
        assert TreeFiles(memory, PARTITION).checkpoint() == note
    assert [len(each.signatures) for each in asked] == [1, 2]


def test_an_archive_that_was_set_back_is_refused() -> None:
    memory = MemoryFiles()
    attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(300))
    with pytest.raises(AttestationError, match="300 transactions of partition 3 are attested"):
        attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(200))


def test_a_checkpoint_of_another_key_or_log_is_not_extended() -> None:
    memory = MemoryFiles()
    other = SecretKey.generate("waltz/test", KeyKind.LOG)
    files = TreeFiles(memory, PARTITION)
    Attester(files, CLUSTER, PARTITION, other).extend(MemoryBlocks(RECORDS), TransactionId(9))
    with pytest.raises(AttestationError, match="not signed by waltz/test"):
        attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(20))
    files.publish(Checkpoint("waltz/another", 9, root_of(9)).signed(KEY))
    with pytest.raises(AttestationError, match="a checkpoint of waltz/another; expected waltz/00"):
        attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(20))


def test_records_that_the_archive_gives_are_checked() -> None:
    damaged = bytearray(RECORDS[5])
    damaged[40] ^= 1
    records = MemoryBlocks([*RECORDS[:5], bytes(damaged), *RECORDS[6:]])
    with pytest.raises(CorruptionError, match="record 5 does not check out"):
        attester(MemoryFiles()).extend(records, TransactionId(20))
    with pytest.raises(AttestationError, match="up to 599; expected up to 699"):
        attester(MemoryFiles()).extend(MemoryBlocks(RECORDS), TransactionId(700))


def test_batches_follow_each_other() -> None:
    found = [*batches([block_of(3, 2), block_of(5, 1)], TransactionId(3))]
    assert [(each.first_transaction_id, len(each)) for each in found] == [(3, 2), (5, 1)]
    with pytest.raises(CorruptionError):
        [*batches([block_of(3, 2)], NOTHING)]


@pytest.mark.parametrize("damaged", [0, 1, 57, 58, 99])
@pytest.mark.parametrize("has_other_checksum", [False, True])
def test_all_records_before_a_damaged_one_are_yielded(
    damaged: int, has_other_checksum: bool
) -> None:
    """A forger may have made the record's own checksum fit, and not the one of its data."""
    records = [block_of(number, 1) for number in range(100)]
    changed = bytearray(records[damaged])
    changed[36] ^= 1
    if has_other_checksum:
        changed[-4:] = crc32(changed[:-4]).to_bytes(4, "big")
    records[damaged] = bytes(changed)
    found = batches([b"".join(records)], TransactionId(0))
    if damaged:
        assert len(next(found)) == damaged
    with pytest.raises(CorruptionError, match=f"record {damaged} does not check out"):
        next(found)
