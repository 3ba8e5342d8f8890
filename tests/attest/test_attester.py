"""The attester: killed at every write, and every change of records and tiles found."""

from __future__ import annotations

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
from waltz.attest.attester import Attester, batches, first_difference
from waltz.attest.checkpoints import Checkpoint, verified_checkpoint
from waltz.attest.leaves import Leaves
from waltz.attest.merkle import TreeHashes, leaf_hash
from waltz.attest.notes import KeyKind, Note, SecretKey, Signature
from waltz.attest.tree_files import TreeFiles
from waltz.errors import AttestationError, CorruptionError
from waltz.record import batch_from_block
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


class TestCheck:
    memory = MemoryFiles()
    checkpoint = attester(memory).extend(MemoryBlocks(RECORDS), TransactionId(600)).checkpoint

    def difference(self, records: list[bytes], memory: MemoryFiles | None = None) -> object:
        files = TreeFiles(memory or self.memory, PARTITION)
        blocks = MemoryBlocks(records).blocks(PARTITION, TransactionId(0), TransactionId(600))
        found = batches((each for each in blocks if each), TransactionId(0))
        difference = first_difference(files, LEAVES, found, self.checkpoint)
        if difference is None:
            return None
        return difference.transaction_id, difference.is_of_the_tile

    def test_what_was_attested_is_found_equal(self) -> None:
        assert self.difference(RECORDS) is None

    @pytest.mark.parametrize("changed", [0, 1, 255, 256, 599])
    def test_the_first_changed_record_is_named(self, changed: int) -> None:
        """A forger makes the record's own checksums fit."""
        records = [*RECORDS]
        for number in {changed, 599}:
            records[number] = block_of(number, 1, b"forged")
        assert self.difference(records) == (changed, False)

    def test_records_that_are_gone_are_named(self) -> None:
        assert self.difference(RECORDS[:400]) == (400, False)
        assert self.difference([]) == (0, False)

    def test_every_changed_byte_of_every_tile_is_found(self) -> None:
        for path, content in self.memory.content.items():
            if "/tile/" not in path:
                continue
            for place in range(0, len(content), 37):
                memory = MemoryFiles()
                changed = bytearray(content)
                changed[place] ^= 1
                memory.content = self.memory.content | {path: bytes(changed)}
                if "/tile/0/" in path:
                    first = 256 * (0 if "000" in path else 1 if "001" in path else 2)
                    assert self.difference(RECORDS, memory) == (first + place // 32, True)
                else:
                    with pytest.raises(AttestationError, match=r"of level [12] of .* was changed"):
                        self.difference(RECORDS, memory)

    def test_records_and_tiles_that_were_changed_alike_do_not_have_the_signed_root(self) -> None:
        records = [*RECORDS[:-1], block_of(599, 1, b"forged")]
        forged = MemoryFiles()
        other = SecretKey.generate("waltz/test", KeyKind.LOG)
        Attester(TreeFiles(forged, PARTITION), CLUSTER, PARTITION, other).extend(
            MemoryBlocks(records), TransactionId(600)
        )
        with pytest.raises(AttestationError, match="changed alike"):
            self.difference(records, forged)

    def test_a_batch_may_reach_beyond_the_checkpoint(self) -> None:
        files = TreeFiles(self.memory, PARTITION)
        batch = batch_from_block(block_of(0, 700, b"some data"), TransactionId(0))
        assert first_difference(files, LEAVES, [batch], self.checkpoint) is None


def test_batches_follow_each_other() -> None:
    found = [*batches([block_of(3, 2), block_of(5, 1)], TransactionId(3))]
    assert [(each.first_transaction_id, len(each)) for each in found] == [(3, 2), (5, 1)]
    with pytest.raises(CorruptionError):
        [*batches([block_of(3, 2)], NOTHING)]
