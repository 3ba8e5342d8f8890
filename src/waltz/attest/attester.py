"""The attester: it adds what is archived to a partition's tree, and signs the tree's checkpoint.

The order of its writes makes it safe to be killed anywhere: tiles, then the checkpoint, then the
checkpoint with the signatures of witnesses. Nothing is signed that does not extend the checkpoint
that was signed before, and a tile is never replaced: so of one size there is one root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from waltz.attest.checkpoints import Checkpoint, origin_of, parse_checkpoint, verified_checkpoint
from waltz.attest.inclusion import InclusionProof
from waltz.attest.leaves import Leaves
from waltz.attest.merkle import HASH_BYTES, Tile, TreeGrowth, TreeHashes, is_included
from waltz.attest.notes import Note, PublicKey, SecretKey, Signature
from waltz.attest.tree_files import TreeFiles
from waltz.errors import AttestationError, CorruptionError
from waltz.record import RecordBatch, batch_from_block
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

    Raises CorruptionError.
    """
    for block in blocks:
        batch = batch_from_block(block, first)
        if (fault := batch.fault(with_data=True)) is not None:
            raise CorruptionError(fault)
        yield batch
        first = TransactionId(first + len(batch))


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


@dataclass(frozen=True, slots=True)
class Difference:
    """The first transaction whose record is not the one that was attested."""

    transaction_id: TransactionId
    attested: bytes
    """Hash of the leaf, as its tile has it."""
    found: bytes | None
    """Hash of the leaf now; None: there is no such record any more."""
    is_of_the_tile: bool
    """Whether the tile was changed and the record was not: the record leads to the root of the
    checkpoint, over the other hashes of the tiles."""


def first_difference(
    files: TreeFiles,
    leaves: Leaves,
    found: Iterable[RecordBatch],
    checkpoint: Checkpoint,
    progress: Callable[[int], None] = lambda count: None,
) -> Difference | None:
    """Compare records, from transaction 0 on, with what was attested; None: all are the same.

    The tiles are not believed: if every leaf is equal, the root computed from the records has to be
    that of the checkpoint. Raises AttestationError: a tile is missing or was changed, or records
    and tiles were changed alike.
    """
    growth = TreeGrowth()
    tree = files.hashes(checkpoint.size)
    inner: list[Tile] = []
    for batch in found:
        hashes = leaves.hashes(batch)[: (checkpoint.size - growth.size) * HASH_BYTES]
        for place in range(0, len(hashes), HASH_BYTES):
            index = growth.size + place // HASH_BYTES
            attested = tree.leaf(index)
            if attested != hashes[place : place + HASH_BYTES]:
                return _difference(tree, index, attested, hashes[place:][:HASH_BYTES], checkpoint)
        inner += (each for each in growth.add(hashes) if each.level)
        progress(len(hashes) // HASH_BYTES)
        if growth.size == checkpoint.size:
            break
    if growth.size < checkpoint.size:
        missing = TransactionId(growth.size)
        return Difference(missing, tree.leaf(missing), None, is_of_the_tile=False)
    if growth.root() != checkpoint.root:
        raise AttestationError(
            f"the records are those of the tiles of {checkpoint.origin}, and these are not those of"
            " the checkpoint: records and tiles were changed alike after they were attested"
        )
    for each in (*inner, *growth.partial_tiles()):
        if files.tile(each.level, each.index, each.width) != each.hashes:
            raise AttestationError(
                f"tile {each.index} of level {each.level} of {checkpoint.origin} was changed; all"
                " records are as they were attested"
            )
    return None


def _difference(
    tree: TreeHashes, index: int, attested: bytes, found: bytes, checkpoint: Checkpoint
) -> Difference:
    try:
        path = tree.inclusion_proof(index)
    except AttestationError:
        path = []
    is_genuine = is_included(found, index, checkpoint.size, checkpoint.root, path)
    return Difference(TransactionId(index), attested, found, is_of_the_tile=is_genuine)
