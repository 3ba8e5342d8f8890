"""Paths of tiles, and what is refused of the files behind them."""

from __future__ import annotations

import pytest

from tests.attest.trees import PARTITION, MemoryFiles, some_leaves, tree_hash
from waltz.attest.merkle import Tile, TreeGrowth
from waltz.attest.tree_files import TreeFiles, tile_path
from waltz.errors import AttestationError

HASHES = b"".join(some_leaves(256))


@pytest.mark.parametrize(
    ("level", "index", "width", "path"),
    [
        (0, 0, 256, "tile/0/000"),
        (0, 999, 256, "tile/0/999"),
        (0, 1000, 256, "tile/0/x001/000"),
        (2, 1234067, 256, "tile/2/x001/x234/067"),
        (1, 5, 17, "tile/1/005.p/17"),
        (0, 1234067, 1, "tile/0/x001/x234/067.p/1"),
    ],
)
def test_the_path_of_a_tile(level: int, index: int, width: int, path: str) -> None:
    assert tile_path(level, index, width) == path


def test_a_tile_is_written_once_and_refused_with_other_hashes() -> None:
    memory = MemoryFiles()
    files = TreeFiles(memory, PARTITION)
    files.write([Tile(0, 0, HASHES)])
    files.write([Tile(0, 0, HASHES)])
    assert memory.content == {"attest/3/tile/0/000": HASHES}
    with pytest.raises(AttestationError, match=r"tile/0/000 has other hashes than the records"):
        files.write([Tile(0, 0, HASHES[::-1])])
    assert memory.content == {"attest/3/tile/0/000": HASHES}


def test_a_partial_tile_is_cut_from_a_full_one() -> None:
    files = TreeFiles(MemoryFiles(), PARTITION)
    files.write([Tile(0, 0, HASHES)])
    assert files.tile(0, 0, 10) == HASHES[:320]


def test_a_tile_that_is_missing_or_has_another_length_is_named() -> None:
    memory = MemoryFiles()
    files = TreeFiles(memory, PARTITION)
    with pytest.raises(AttestationError, match=r"attest/3/tile/0/000\.p/10 is missing"):
        files.tile(0, 0, 10)
    memory.content["attest/3/tile/0/000"] = HASHES[:-1]
    with pytest.raises(AttestationError, match="has 8191 bytes; expected 8192"):
        files.tile(0, 0, 256)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 70_000])
def test_a_tree_is_read_as_it_was_written(size: int) -> None:
    files = TreeFiles(MemoryFiles(), PARTITION)
    leaves = some_leaves(size)
    growth = TreeGrowth()
    files.write(growth.add(b"".join(leaves)))
    files.write(growth.partial_tiles())
    assert files.growth(size).root() == tree_hash(leaves)
    if size:
        assert files.hashes(size).root() == tree_hash(leaves)
        assert files.hashes(size).leaf(size - 1) == leaves[-1]
