"""Merkle trees: hashes, the growth of a tree in tiles, and proofs.

A tree is that of RFC 6962, section 2.1, with SHA-256; its tiles are those of C2SP tlog-tiles.
Proofs are made from tiles. They are checked by an algorithm that reads no tile and shares no
function with their making, except for the hash of two nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

HASH_BYTES: Final = 32

TILE_HEIGHT: Final = 8
"""Levels of the tree in one tile."""

TILE_WIDTH: Final = 1 << TILE_HEIGHT
"""Hashes in a full tile."""

TILE_BYTES: Final = TILE_WIDTH * HASH_BYTES

LEAVES_MAX: Final = 2**63 - 1
"""Leaves of one tree: transaction IDs are signed 64-bit numbers."""

PROOF_HASHES_MAX: Final = 63
"""Hashes of one proof: a tree of at most `LEAVES_MAX` leaves is at most this high."""

EMPTY_ROOT: Final = sha256(b"").digest()
"""Root of a tree without leaves: "The hash of an empty list is the hash of an empty string"."""

LEAF_PREFIX: Final = b"\x00"
_NODE_PREFIX: Final = b"\x01"


@dataclass(frozen=True, slots=True)
class Tile:
    """A run of hashes of one level: at most `TILE_WIDTH`, `HASH_BYTES` each, in `hashes`.

    `level` counts tiles from the leaves up; `index` is the tile's place in its level.
    """

    level: int
    index: int
    hashes: bytes

    @property
    def width(self) -> int:
        return len(self.hashes) // HASH_BYTES


def leaf_hash(entry: bytes) -> bytes:
    """Return the hash of a leaf: "MTH({d(0)}) = SHA-256(0x00 || d(0))"."""
    return sha256(LEAF_PREFIX + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of two subtrees: "SHA-256(0x01 || MTH(D[0:k]) || MTH(D[k:n]))"."""
    return sha256(_NODE_PREFIX + left + right).digest()


def perfect_root(hashes: bytes) -> bytes:
    """Return the root over hashes whose number is a power of two."""
    while len(hashes) > HASH_BYTES:
        hashes = b"".join(
            [
                sha256(_NODE_PREFIX + hashes[place : place + 2 * HASH_BYTES]).digest()
                for place in range(0, len(hashes), 2 * HASH_BYTES)
            ]
        )
    return hashes


class TreeGrowth:
    """A tree that grows: of each level it keeps the hashes that do not fill a tile yet."""

    def __init__(self, size: int = 0, edges: Sequence[bytes] = ()) -> None:
        """`edges`: the last, partial tile of each level, from the leaves up, as `edge_widths` of
        `size` tells. Raises ValueError: the edges are not those of a tree of that size."""
        if [len(each) for each in edges] != [width * HASH_BYTES for width in edge_widths(size)]:
            raise ValueError(f"the edges are not those of a tree of {size} leaves")
        self._size = size
        self._edges = [bytearray(each) for each in edges]

    @property
    def size(self) -> int:
        """The number of leaves."""
        return self._size

    def add(self, hashes: bytes) -> list[Tile]:
        """Add leaf hashes, `HASH_BYTES` each; return the tiles that are full now, lower levels
        first."""
        full: list[Tile] = []
        before = self._size
        self._size += len(hashes) // HASH_BYTES
        added = hashes
        level = 0
        while added:
            if level == len(self._edges):
                self._edges.append(bytearray())
            edge = self._edges[level]
            first = (before >> (TILE_HEIGHT * level)) // TILE_WIDTH
            edge += added
            roots = []
            count = len(edge) // TILE_BYTES
            for place in range(count):
                tile = bytes(edge[place * TILE_BYTES : (place + 1) * TILE_BYTES])
                full.append(Tile(level, first + place, tile))
                roots.append(perfect_root(tile))
            del edge[: count * TILE_BYTES]
            added = b"".join(roots)
            level += 1
        return full

    def partial_tiles(self) -> list[Tile]:
        """Return the last tile of each level that is not full and not empty."""
        return [
            Tile(level, (self._size >> (TILE_HEIGHT * level)) // TILE_WIDTH, bytes(edge))
            for level, edge in enumerate(self._edges)
            if edge
        ]

    def root(self) -> bytes:
        """Return the root hash over all leaves."""
        subtrees: list[bytes] = []
        for edge in reversed(self._edges):
            subtrees += _perfect_subtrees(bytes(edge))
        return _joined(subtrees)


def edge_widths(size: int) -> list[int]:
    """Return the widths of the last tile of each level of a tree of `size` leaves.

    "The partial tile at level l for a tree of size s has floor(s / 256**l) mod 256 entries": 0 is a
    level whose tiles are all full.
    """
    widths = []
    while size:
        widths.append(size % TILE_WIDTH)
        size >>= TILE_HEIGHT
    return widths


def _perfect_subtrees(hashes: bytes) -> list[bytes]:
    """Return the roots of the perfect subtrees that a run of hashes consists of, largest first."""
    roots = []
    width = len(hashes) // HASH_BYTES
    place = 0
    while width:
        part = 1 << (width.bit_length() - 1)
        roots.append(perfect_root(hashes[place : place + part * HASH_BYTES]))
        place += part * HASH_BYTES
        width -= part
    return roots


def _joined(subtrees: Sequence[bytes]) -> bytes:
    """Return the root over perfect subtrees, largest first, left to right."""
    if not subtrees:
        return EMPTY_ROOT
    root = subtrees[-1]
    for each in reversed(subtrees[:-1]):
        root = node_hash(each, root)
    return root


class TreeHashes:
    """A tree of `size` leaves, read from its tiles."""

    def __init__(self, size: int, read_tile: Callable[[int, int, int], bytes]) -> None:
        """`read_tile` gets level, index and width of a tile of this tree; returns its hashes."""
        self._size = size
        self._read_tile = read_tile
        self._tiles: dict[tuple[int, int], bytes] = {}

    def leaf(self, index: int) -> bytes:
        """Return the hash of the leaf at `index`, as its tile has it."""
        return self._perfect(0, index)

    def root(self) -> bytes:
        return self._of_range(0, self._size)

    def inclusion_proof(self, index: int) -> list[bytes]:
        """Return the audit path of a leaf, from its sibling up (RFC 6962, section 2.1.1).

        Raises ValueError: there is no leaf of that index.
        """
        if not 0 <= index < self._size:
            raise ValueError(f"no leaf {index} in a tree of {self._size} leaves")
        return list(self._path(index, 0, self._size))

    def consistency_proof(self, earlier_size: int) -> list[bytes]:
        """Return the proof that the tree of `earlier_size` leaves is this tree's beginning
        (RFC 6962, section 2.1.2). Raises ValueError: the earlier tree is larger."""
        if not 0 <= earlier_size <= self._size:
            raise ValueError(f"a tree of {self._size} leaves; asked for {earlier_size} of them")
        if earlier_size in (0, self._size):
            return []
        return list(self._subproof(earlier_size, 0, self._size, is_whole=True))

    def _path(self, index: int, start: int, end: int) -> Iterator[bytes]:
        if end - start == 1:
            return
        middle = start + _split(end - start)
        if index < middle:
            yield from self._path(index, start, middle)
            yield self._of_range(middle, end)
        else:
            yield from self._path(index, middle, end)
            yield self._of_range(start, middle)

    def _subproof(self, size: int, start: int, end: int, *, is_whole: bool) -> Iterator[bytes]:
        if size == end:
            if not is_whole:
                yield self._of_range(start, end)
            return
        middle = start + _split(end - start)
        if size <= middle:
            yield from self._subproof(size, start, middle, is_whole=is_whole)
            yield self._of_range(middle, end)
        else:
            yield from self._subproof(size, middle, end, is_whole=False)
            yield self._of_range(start, middle)

    def _of_range(self, start: int, end: int) -> bytes:
        """Return MTH(D[start:end]) of a range that the tree's own splits lead to."""
        subtrees = []
        while start < end:
            height = (end - start).bit_length() - 1
            subtrees.append(self._perfect(height, start >> height))
            start += 1 << height
        return _joined(subtrees)

    def _perfect(self, height: int, index: int) -> bytes:
        level, inside = divmod(height, TILE_HEIGHT)
        first = index << inside
        tile_index, place = divmod(first, TILE_WIDTH)
        tile = self._tile(level, tile_index)
        return perfect_root(tile[place * HASH_BYTES : (place + (1 << inside)) * HASH_BYTES])

    def _tile(self, level: int, index: int) -> bytes:
        tile = self._tiles.get((level, index))
        if tile is None:
            width = min(TILE_WIDTH, (self._size >> (TILE_HEIGHT * level)) - index * TILE_WIDTH)
            tile = self._tiles[level, index] = self._read_tile(level, index, width)
        return tile


def _split(count: int) -> int:
    """Return the largest power of two that is smaller than `count`."""
    return 1 << ((count - 1).bit_length() - 1)


def is_included(leaf: bytes, index: int, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether `proof` shows that `leaf` is the leaf at `index` of the tree with this size and root.

    Source: RFC 9162, section 2.1.3.2, whose trees are those of RFC 6962.
    """
    if not 0 <= index < size <= LEAVES_MAX or len(proof) > PROOF_HASHES_MAX:
        return False
    node, last = index, size - 1
    found = leaf
    for each in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = node_hash(each, found)
            while not node & 1 and node:
                node >>= 1
                last >>= 1
        else:
            found = node_hash(found, each)
        node >>= 1
        last >>= 1
    return last == 0 and found == root


def is_consistent(
    earlier_size: int, earlier_root: bytes, size: int, root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether `proof` shows that the earlier tree is the beginning of the later one.

    Source: RFC 9162, section 2.1.4.2. Everything is consistent with a tree without leaves.
    """
    if not 0 <= earlier_size <= size <= LEAVES_MAX or len(proof) > PROOF_HASHES_MAX:
        return False
    if earlier_size == size:
        return not proof and earlier_root == root
    if earlier_size == 0:
        return not proof and earlier_root == EMPTY_ROOT
    path = list(proof)
    if earlier_size & (earlier_size - 1) == 0:
        path.insert(0, earlier_root)
    if not path:
        return False
    node, last = earlier_size - 1, size - 1
    while node & 1:
        node >>= 1
        last >>= 1
    before = after = path[0]
    for each in path[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            before = node_hash(each, before)
            after = node_hash(each, after)
            while not node & 1 and node:
                node >>= 1
                last >>= 1
        else:
            after = node_hash(after, each)
        node >>= 1
        last >>= 1
    return last == 0 and before == earlier_root and after == root
