"""The files of a partition's tree next to its archive: tiles and the newest checkpoint.

Paths are those of C2SP tlog-tiles, below `attest/P/`. A file of a tile is written once and never
replaced; `checkpoint` is replaced by the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from waltz.attest.merkle import (
    HASH_BYTES,
    TILE_BYTES,
    TILE_HEIGHT,
    TILE_WIDTH,
    Tile,
    TreeGrowth,
    TreeHashes,
    edge_widths,
)
from waltz.attest.notes import NOTE_BYTES_MAX, Note, parse_note
from waltz.errors import AttestationError, NotFoundError
from waltz.types import PartitionId

_DIGITS: Final = 1000


class Files(Protocol):
    """An archive's target, as far as trees need it."""

    def get(self, path: str, bytes_max: int) -> bytes:
        """Return a file. Raises NotFoundError; ArchiveDamagedError: it is larger."""
        ...

    def put_all_if_absent(self, objects: Sequence[tuple[str, bytes]]) -> list[str]:
        """Write new files, all durable when this returns. Return the paths of those that were
        there; these stay, and are durable as well."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it, durably."""
        ...


def tile_path(level: int, index: int, width: int = TILE_WIDTH) -> str:
    """Return the path of a tile: "zero-padded 3-digit path elements. All but the last path element
    MUST begin with an x"; ".p/<W> is only present for partial tiles"."""
    elements = [f"{index % _DIGITS:03}"]
    while index >= _DIGITS:
        index //= _DIGITS
        elements.append(f"x{index % _DIGITS:03}")
    partial = "" if width == TILE_WIDTH else f".p/{width}"
    return f"tile/{level}/{'/'.join(reversed(elements))}{partial}"


class TreeFiles:
    """The tree of one partition in an archive."""

    def __init__(self, files: Files, partition_id: PartitionId) -> None:
        self._files = files
        self._root = f"attest/{partition_id}"

    def checkpoint(self) -> Note | None:
        """Return the newest checkpoint, unverified; None: nothing was attested yet."""
        try:
            return parse_note(self._files.get(self._path("checkpoint"), NOTE_BYTES_MAX))
        except NotFoundError:
            return None

    def publish(self, note: Note) -> None:
        """Make a checkpoint the newest one; its tiles are written before."""
        self._files.put(self._path("checkpoint"), str(note).encode())

    def settle(self) -> None:
        """Make the newest checkpoint durable, if there is one: an attester that was killed may have
        published it and not have synced its name."""
        note = self.checkpoint()
        if note is not None:
            self._files.put_all_if_absent([(self._path("checkpoint"), str(note).encode())])

    def write(self, tiles: Sequence[Tile]) -> None:
        """Write tiles that are new; all tiles given are durable when this returns.

        Raises AttestationError: a tile is there with other hashes.
        """
        wanted = {self._path(tile_path(each.level, each.index, each.width)): each for each in tiles}
        objects = [(path, each.hashes) for path, each in wanted.items()]
        for path in self._files.put_all_if_absent(objects):
            if self._read(path, wanted[path].width) != wanted[path].hashes:
                raise AttestationError(
                    f"{path} has other hashes than the records: what was attested is not what is"
                    " archived now; `waltz attest check` names the first transaction"
                )

    def tile(self, level: int, index: int, width: int) -> bytes:
        """Return the hashes of a tile. A partial tile is cut from a full one where the partial one
        is gone. Raises AttestationError: there is neither, or its length is wrong."""
        path = self._path(tile_path(level, index, width))
        found = self._read(path, width)
        if found is None and width < TILE_WIDTH:
            found = self._read(self._path(tile_path(level, index)), TILE_WIDTH)
        if found is None:
            raise AttestationError(f"{path} is missing")
        return found[: width * HASH_BYTES]

    def hashes(self, size: int) -> TreeHashes:
        """Return the tree of the first `size` transactions."""
        return TreeHashes(size, self.tile)

    def growth(self, size: int) -> TreeGrowth:
        """Return the tree of the first `size` transactions, to add others. Raises
        AttestationError: a tile is missing."""
        edges = []
        for level, width in enumerate(edge_widths(size)):
            index = (size >> (TILE_HEIGHT * level)) // TILE_WIDTH
            edges.append(self.tile(level, index, width) if width else b"")
        return TreeGrowth(size, edges)

    def _read(self, path: str, width: int) -> bytes | None:
        try:
            data = self._files.get(path, TILE_BYTES)
        except NotFoundError:
            return None
        if len(data) != width * HASH_BYTES:
            raise AttestationError(f"{path} has {len(data)} bytes; expected {width * HASH_BYTES}")
        return data

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"
