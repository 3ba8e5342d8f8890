"""The part of a cluster's log that signed checkpoints prove, for readers that hand on nothing else.

Tiles, checkpoints and records are believed only as far as they lead to the root that the log's key
has signed. Whether they do is checked as proofs of single transactions are, by `is_included`; what
is shared with the making of trees is the hash of two nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from waltz.attest.attester import own_checkpoint
from waltz.attest.checkpoints import Checkpoint, origin_of, parse_checkpoint
from waltz.attest.inclusion import cosigners
from waltz.attest.leaves import Leaves
from waltz.attest.merkle import (
    HASH_BYTES,
    TILE_HEIGHT,
    TILE_WIDTH,
    TreeHashes,
    is_consistent,
    is_included,
    node_hash,
)
from waltz.attest.notes import Note, PublicKey, parse_note
from waltz.attest.tree_files import TreeFiles
from waltz.errors import AttestationError, ConfigurationError
from waltz.record import RecordBatch
from waltz.types import PartitionId, TransactionId


class Covered(NamedTuple):
    """The first transaction that no checkpoint covers, and what is known of the newest one."""

    end: TransactionId
    said: str


class _Head(NamedTuple):
    checkpoint: Checkpoint
    note: Note


class AttestedLog:
    """The trees of a cluster's partitions, and the keys that are trusted. For one thread at a time.

    Keeps, per partition, the newest checkpoint that it has verified; another one takes its place
    only if its tree begins with that one's.
    """

    def __init__(
        self,
        files_of: Callable[[PartitionId], TreeFiles],
        log_key: PublicKey,
        *,
        witness_keys: Sequence[PublicKey] = (),
        witnesses_min: int | None = None,
        seen: Sequence[str] = (),
    ) -> None:
        """`witnesses_min`: the witnesses that must have cosigned; all that are named if None.
        `seen`: checkpoints that `checkpoint` returned before, of any partitions.

        Raises ConfigurationError: more witnesses are asked for than are named; AttestationError:
        one of `seen` is not signed by the log's key.
        """
        self._files_of = files_of
        self._log_key = log_key
        self._witness_keys = tuple(witness_keys)
        named = len({each.public for each in witness_keys})
        self._witnesses_min = named if witnesses_min is None else witnesses_min
        if not 0 <= self._witnesses_min <= named:
            raise ConfigurationError(
                f"witnesses_min is {self._witnesses_min}; expected 0 to the number of witnesses,"
                f" {named}"
            )
        self._heads: dict[str, _Head] = {}
        for text in seen:
            note = parse_note(text.encode())
            origin = parse_checkpoint(note.text).origin
            checkpoint = own_checkpoint(note, log_key, origin)
            known = self._heads.get(origin)
            if known is None or known.checkpoint.size < checkpoint.size:
                self._heads[origin] = _Head(checkpoint, note)

    def covered(self, cluster_key: UUID, partition_id: PartitionId) -> Covered:
        """Look for a newer checkpoint; return up to where transactions are covered.

        Raises AttestationError: the newest checkpoint is not signed by the log's key, or its tree
        does not begin with what was seen before; errors of the archive.
        """
        origin = origin_of(cluster_key, partition_id)
        head = self._heads.get(origin)
        size = 0 if head is None else head.checkpoint.size
        files = self._files_of(partition_id)
        note = files.checkpoint()
        if note is None:
            return Covered(TransactionId(size), "nothing of it is attested yet")
        found = own_checkpoint(note, self._log_key, origin)
        said = f"the newest checkpoint has {found.size} transactions"
        if head is not None and (found.size > size or found.root != head.checkpoint.root):
            self._expect_extension(files, head.checkpoint, found)
        cosigned = len(cosigners(note, self._witness_keys))
        if cosigned < self._witnesses_min:
            said += f" and is cosigned by {cosigned} witnesses; {self._witnesses_min} are asked for"
        elif found.size >= size:
            self._heads[origin] = _Head(found, note)
            size = found.size
        return Covered(TransactionId(size), said)

    def checkpoint(self, cluster_key: UUID, partition_id: int) -> str | None:
        """Return the newest checkpoint that was verified, with its signatures, to be kept and given
        as `seen` the next time; None: there is none."""
        head = self._heads.get(origin_of(cluster_key, PartitionId(partition_id)))
        return None if head is None else str(head.note)

    def check(self, cluster_key: UUID, partition_id: PartitionId, records: RecordBatch) -> None:
        """Prove that the records are in the log at their places.

        Raises AttestationError: one of them is not, or is beyond what `covered` has returned; its
        transaction is named. Errors of the archive.
        """
        head = self._heads.get(origin_of(cluster_key, partition_id))
        end = records.next_transaction_id
        if head is None or end > head.checkpoint.size:
            raise AttestationError(f"transaction {end - 1} is not covered by a checkpoint")
        checkpoint = head.checkpoint
        tree = self._files_of(partition_id).hashes(checkpoint.size)
        hashes = Leaves(cluster_key, partition_id).hashes(records)
        first = records.first_transaction_id
        while first < end:
            until = min(end, (first // TILE_WIDTH + 1) * TILE_WIDTH)
            own = hashes[: (until - first) * HASH_BYTES]
            hashes = hashes[len(own) :]
            if not _is_tile_included(tree, first, own, checkpoint):
                _expect_each(tree, first, own, checkpoint)
            first = TransactionId(until)

    @staticmethod
    def _expect_extension(files: TreeFiles, earlier: Checkpoint, found: Checkpoint) -> None:
        """Raises AttestationError: the two trees are not those of one log."""
        small, large = sorted((earlier, found), key=lambda each: each.size)
        proof = files.hashes(large.size).consistency_proof(small.size)
        if not is_consistent(small.size, small.root, large.size, large.root, proof):
            raise AttestationError(
                f"the checkpoint of {found.size} transactions of {found.origin} is not of the log"
                f" whose checkpoint of {earlier.size} was seen before: its history was changed, or"
                " two histories are shown"
            )


def _is_tile_included(tree: TreeHashes, first: int, own: bytes, checkpoint: Checkpoint) -> bool:
    """Whether `own`, the hashes of the leaves from `first` on, are those of a full tile that leads
    to the root. Others of that tile are taken as they are: the root proves them as well."""
    index = first // TILE_WIDTH
    start = index * TILE_WIDTH
    if start + TILE_WIDTH > checkpoint.size:
        return False
    before = [tree.leaf(each) for each in range(start, first)]
    mine = [own[place : place + HASH_BYTES] for place in range(0, len(own), HASH_BYTES)]
    after = [tree.leaf(each) for each in range(first + len(mine), start + TILE_WIDTH)]
    nodes = before + mine + after
    while len(nodes) > 1:
        nodes = list(map(node_hash, nodes[::2], nodes[1::2]))
    # From its height on, a full tile is proven like a leaf of a tree of that many tiles.
    tiles = ((checkpoint.size - 1) >> TILE_HEIGHT) + 1
    path = tree.inclusion_proof(start)[TILE_HEIGHT:]
    return is_included(nodes[0], index, tiles, checkpoint.root, path)


def _expect_each(tree: TreeHashes, first: int, own: bytes, checkpoint: Checkpoint) -> None:
    """Prove leaf by leaf. Raises AttestationError, naming the first that is not in the log."""
    for place in range(0, len(own), HASH_BYTES):
        index = first + place // HASH_BYTES
        leaf = own[place : place + HASH_BYTES]
        path = tree.inclusion_proof(index)
        if not is_included(leaf, index, checkpoint.size, checkpoint.root, path):
            raise AttestationError(
                f"transaction {index} is not proven to be the one in {checkpoint.origin}: it was"
                " changed after it was attested, or the tree next to the archive was; `waltz attest"
                " check` tells which"
            )
