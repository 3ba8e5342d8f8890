"""Compares records with what was attested, and names the first transaction that differs.

The records may come from an archive, from servers or from a storage node. Nothing is believed but
the checkpoint, whose signature was verified before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from waltz.attest.checkpoints import Checkpoint
from waltz.attest.leaves import Leaves
from waltz.attest.merkle import HASH_BYTES, Tile, TreeGrowth, TreeHashes, is_included
from waltz.attest.tree_files import TreeFiles
from waltz.errors import AttestationError, CorruptionError
from waltz.record import RecordBatch
from waltz.types import TransactionId


@dataclass(frozen=True, slots=True)
class Difference:
    """The first transaction whose record is not the one that was attested, or cannot be read."""

    transaction_id: TransactionId
    attested: bytes
    """Hash of the leaf, as its tile has it."""
    found: bytes | None
    """Hash of the leaf now; None: there is no such record any more, or it does not check out."""
    is_of_the_tile: bool
    """Whether the tile was changed and the record was not: the record leads to the root of the
    checkpoint, over the other hashes of the tiles."""
    damage: CorruptionError | None = None
    """Why the record cannot be read; None: it can be, or there is none."""


def first_difference(
    files: TreeFiles,
    leaves: Leaves,
    found: Iterable[RecordBatch],
    checkpoint: Checkpoint,
    progress: Callable[[int], None] = lambda count: None,
) -> Difference | None:
    """Compare records, from transaction 0 on, with what was attested; None: all are the same.

    `found` may raise CorruptionError: the transaction after those that it yielded cannot be read.
    The tiles are not believed: if every leaf is equal, the root computed from the records has to be
    that of the checkpoint. Raises AttestationError: a tile is missing or was changed, or records
    and tiles were changed alike.
    """
    growth = TreeGrowth()
    tree = files.hashes(checkpoint.size)
    inner: list[Tile] = []
    damage: list[CorruptionError] = []
    for batch in _until_damage(found, damage):
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
        return Difference(missing, tree.leaf(missing), None, False, *damage)
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


def _until_damage(
    found: Iterable[RecordBatch], damage: list[CorruptionError]
) -> Iterator[RecordBatch]:
    try:
        yield from found
    except CorruptionError as error:
        damage.append(error)


def _difference(
    tree: TreeHashes, index: int, attested: bytes, found: bytes, checkpoint: Checkpoint
) -> Difference:
    try:
        path = tree.inclusion_proof(index)
    except AttestationError:
        path = []
    is_genuine = is_included(found, index, checkpoint.size, checkpoint.root, path)
    return Difference(TransactionId(index), attested, found, is_of_the_tile=is_genuine)
