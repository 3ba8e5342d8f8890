"""Every change of records and tiles is found, with the first transaction that differs."""

from __future__ import annotations

import pytest

from tests.attest.test_attester import LEAVES, RECORDS, attester
from tests.attest.trees import CLUSTER, PARTITION, MemoryBlocks, MemoryFiles, block_of
from waltz.attest.attester import Attester, batches
from waltz.attest.comparison import first_difference
from waltz.attest.notes import KeyKind, SecretKey
from waltz.attest.tree_files import TreeFiles
from waltz.errors import AttestationError
from waltz.record import batch_from_block
from waltz.types import TransactionId


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

    def test_a_record_that_cannot_be_read_is_named_with_the_reason(self) -> None:
        damaged = bytearray(RECORDS[300])
        damaged[30] ^= 1
        records = [*RECORDS[:300], bytes(damaged), *RECORDS[301:]]
        blocks = MemoryBlocks(records).blocks(PARTITION, TransactionId(0), TransactionId(600))
        files = TreeFiles(self.memory, PARTITION)
        found = first_difference(files, LEAVES, batches(blocks, TransactionId(0)), self.checkpoint)
        assert found is not None
        assert (found.transaction_id, found.found) == (300, None)
        assert "record 300 does not check out" in str(found.damage)

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
