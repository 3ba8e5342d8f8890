"""The attester: it adds what is archived to a partition's tree, and signs the tree's checkpoint.

The order of its writes makes it safe to be killed anywhere: tiles, then the checkpoint, then the
checkpoint with the signatures of witnesses. Nothing is signed that does not extend the checkpoint
that was signed before, and a tile is never replaced: so of one size there is one root.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from waltz.attest.checkpoints import Checkpoint, origin_of, parse_checkpoint, verified_checkpoint
from waltz.attest.inclusion import InclusionProof
from waltz.attest.leaves import Leaves
from waltz.attest.merkle import Tile, TreeGrowth, TreeHashes
from waltz.attest.notes import Note, PublicKey, SecretKey, Signature
from waltz.attest.tree_files import TreeFiles
from waltz.errors import AttestationError, CorruptionError
from waltz.record import RecordBatch, scan_records
from waltz.types import PartitionId, TransactionId

CHECKPOINT_LEAVES_MAX: Final = 1_000_000
"""Transactions after which a checkpoint is published on the way, so that an attester that is killed
repeats at most that many. Their tiles, of 33 MiB, are kept until then and made durable together."""


class Blocks(Protocol):
    """The records of a partition, as an archive gives them."""

    def blocks(
        self, partition_id: PartitionId, first: TransactionId, end: TransactionId
    ) -> Iterator[bytes]:
        """Return whole records as on disk, with the IDs from `first` to `end` - 1, in pieces."""
        ...


@dataclass(frozen=True, slots=True)
class Attested:
    """The number of transactions attested before, and the newest checkpoint."""

    earlier_size: int
    checkpoint: Checkpoint


class Attester:
    """The tree of one partition, and the key that signs for it."""

    def __init__(
        self, files: TreeFiles, cluster_key: UUID, partition_id: PartitionId, key: SecretKey
    ) -> None:
        self._files = files
        self._origin = origin_of(cluster_key, partition_id)
        self._leaves = Leaves(cluster_key, partition_id)
        self._partition_id = partition_id
        self._key = key

    def extend(
        self,
        blocks: Blocks,
        end: TransactionId,
        progress: Callable[[int], None] = lambda count: None,
    ) -> Attested:
        """Attest all transactions below `end`, and publish a checkpoint if there are new ones.

        `progress` is called with the number of transactions done each time. Raises
        AttestationError: the tree is damaged, or is not that of these records; errors of the
        archive.
        """
        growth = self.opened()
        earlier = growth.size
        if earlier > end:
            raise AttestationError(
                f"{earlier} transactions of partition {self._partition_id} are attested, and the"
                f" archive ends before {end}: it was set back, or its manifest is not the newest"
            )
        if growth.size == end:
            self._files.settle()
        while growth.size < end:
            until = TransactionId(min(end, growth.size + CHECKPOINT_LEAVES_MAX))
            full = self._grow(growth, blocks, until, progress)
            # Nothing is signed before all its tiles are durable, those of a killed attester too.
            self._files.write([*full, *growth.partial_tiles()])
            checkpoint = Checkpoint(self._origin, growth.size, growth.root())
            self._files.publish(checkpoint.signed(self._key))
        return Attested(earlier, Checkpoint(self._origin, growth.size, growth.root()))

    def cosign(self, ask: Callable[[Note, TreeHashes], Sequence[Signature]]) -> Note | None:
        """Have witnesses cosign the newest checkpoint, and publish it with their signatures.

        `ask` is given the checkpoint with the signatures it has, and its tree; it returns the
        signatures that come to it. Returns the checkpoint as it is then; None: nothing is attested.
        Raises AttestationError: as `opened`.
        """
        size = self.opened().size
        note = self._files.checkpoint()
        if note is None or not (added := ask(note, self._files.hashes(size))):
            return note
        note = Note(note.text, (*note.signatures, *added))
        self._files.publish(note)
        return note

    def opened(self) -> TreeGrowth:
        """Return the tree of the newest checkpoint. Raises AttestationError: the checkpoint is not
        this key's, is another log's, or does not fit the tiles."""
        note = self._files.checkpoint()
        if note is None:
            return TreeGrowth()
        checkpoint = own_checkpoint(note, self._key.public_key, self._origin)
        growth = self._files.growth(checkpoint.size)
        if growth.root() != checkpoint.root:
            raise AttestationError(
                f"the tiles of partition {self._partition_id} do not have the root of the"
                f" checkpoint of {checkpoint.size} transactions: a tile was changed"
            )
        return growth

    def _grow(
        self,
        growth: TreeGrowth,
        blocks: Blocks,
        end: TransactionId,
        progress: Callable[[int], None],
    ) -> list[Tile]:
        """Add the records below `end`; return the tiles that are full now."""
        full: list[Tile] = []
        first = TransactionId(growth.size)
        for batch in batches(blocks.blocks(self._partition_id, first, end), first):
            full += growth.add(self._leaves.hashes(batch))
            progress(len(batch))
        if growth.size != end:
            raise AttestationError(
                f"the archive gave the transactions of partition {self._partition_id} up to"
                f" {growth.size - 1}; expected up to {end - 1}"
            )
        return full


def own_checkpoint(note: Note, key: PublicKey, origin: str) -> Checkpoint:
    """Return a checkpoint of the log called `origin`. Raises AttestationError: it is not signed by
    `key`, or is of another log."""
    checkpoint = verified_checkpoint(note, key)
    if checkpoint.origin != origin:
        raise AttestationError(f"a checkpoint of {checkpoint.origin}; expected {origin}")
    return checkpoint


def batches(blocks: Iterable[bytes], first: TransactionId) -> Iterator[RecordBatch]:
    """Return the records of blocks that follow each other, from `first` on, each record checked.

    Raises CorruptionError: a record does not check out; all records before it have been yielded.
    """
    for block in blocks:
        batch, reason = _checked(block, first)
        if len(batch):
            yield batch
        if reason is not None:
            raise CorruptionError(reason)
        first = batch.next_transaction_id


def _checked(block: bytes, first: TransactionId) -> tuple[RecordBatch, str | None]:
    """Return the sound records at the beginning of a block, and what is wrong with the next one;
    None: all are sound."""
    offsets = scan_records(block, first)
    batch = RecordBatch(first, block[: offsets[-1]], offsets)
    reason = None
    if offsets[-1] != len(block):
        reason = f"record {first + len(batch)} does not check out"
    if batch.fault(with_data=True) is not None:
        places = range(len(batch))
        sound = bisect_left(places, True, key=lambda last: _is_faulty(batch, last + 1))
        reason = f"record {first + sound} does not check out: its data have another checksum"
        batch = batch.slice(first, sound)
    return batch, reason


def _is_faulty(batch: RecordBatch, count: int) -> bool:
    first = batch.first_transaction_id
    return batch.slice(first, count).fault(with_data=True) is not None


def prove(
    files: TreeFiles,
    blocks: Blocks,
    cluster_key: UUID,
    partition_id: PartitionId,
    transaction_id: TransactionId,
) -> InclusionProof:
    """Return the proof that a transaction is in the log, from the newest checkpoint.

    Raises AttestationError: the transaction is not attested yet, or the tree is damaged.
    The tiles are not checked here: a reader of the proof checks it.
    """
    note = files.checkpoint()
    size = 0 if note is None else parse_checkpoint(note.text).size
    if note is None or not 0 <= transaction_id < size:
        raise AttestationError(
            f"transaction {transaction_id} of partition {partition_id} is not attested: the newest"
            f" checkpoint has {size} transactions; `waltz attest run` adds what is archived"
        )
    end = TransactionId(transaction_id + 1)
    (batch,) = batches(blocks.blocks(partition_id, transaction_id, end), transaction_id)
    entry = Leaves(cluster_key, partition_id).entry(batch.block)
    path = files.hashes(size).inclusion_proof(transaction_id)
    return InclusionProof(entry, transaction_id, tuple(path), note)
