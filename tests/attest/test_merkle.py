"""Trees, compared with the definition of RFC 6962 over all small sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attest.trees import some_leaves, tree_hash
from waltz.attest.merkle import (
    EMPTY_ROOT,
    TILE_WIDTH,
    TreeGrowth,
    TreeHashes,
    edge_widths,
    is_consistent,
    is_included,
    leaf_hash,
    node_hash,
)

SIZES = [*range(70), 255, 256, 257, 511, 512, 513, 700]


def grown(leaves: list[bytes], step: int = 100) -> tuple[TreeGrowth, dict[tuple[int, int], bytes]]:
    """Return a tree that grew in steps, and all its tiles by level and index."""
    growth = TreeGrowth()
    tiles = {}
    for start in range(0, len(leaves), step):
        for each in growth.add(b"".join(leaves[start : start + step])):
            assert each.width == TILE_WIDTH
            tiles[each.level, each.index] = each.hashes
    for each in growth.partial_tiles():
        tiles[each.level, each.index] = each.hashes
    return growth, tiles


def hashes_of(leaves: list[bytes]) -> TreeHashes:
    _, tiles = grown(leaves)

    def read(level: int, index: int, width: int) -> bytes:
        tile = tiles[level, index]
        assert len(tile) == width * 32
        return tile

    return TreeHashes(len(leaves), read)


def test_hashes_of_leaves_and_nodes_are_those_of_known_trees() -> None:
    # The test data of Certificate Transparency: an empty leaf, and the two leaves "" and "\0".
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    empty = leaf_hash(b"")
    assert empty.hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    both = node_hash(empty, leaf_hash(b"\0"))
    assert both.hex() == "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"


@pytest.mark.parametrize("size", SIZES)
def test_the_root_is_that_of_the_definition(size: int) -> None:
    leaves = some_leaves(size)
    assert grown(leaves)[0].root() == tree_hash(leaves)
    assert hashes_of(leaves).root() == tree_hash(leaves)


def test_a_tree_of_three_levels_of_tiles_has_the_root_of_the_definition() -> None:
    leaves = some_leaves(TILE_WIDTH * TILE_WIDTH + 300)
    growth, tiles = grown(leaves, 5000)
    assert growth.root() == tree_hash(leaves)
    assert {level for level, _ in tiles} == {0, 1, 2}
    assert tiles[2, 0] == tree_hash(leaves[: TILE_WIDTH * TILE_WIDTH])


@given(st.lists(st.integers(0, 600), max_size=6))
def test_it_does_not_matter_in_which_steps_a_tree_has_grown(steps: list[int]) -> None:
    leaves = some_leaves(sum(steps))
    growth = TreeGrowth()
    place = 0
    for step in steps:
        growth.add(b"".join(leaves[place : place + step]))
        place += step
        edges = [b""] * len(edge_widths(place))
        for each in growth.partial_tiles():
            edges[each.level] = each.hashes
        growth = TreeGrowth(place, edges)
    assert growth.root() == grown(leaves)[0].root()


def test_edges_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="not those of a tree of 2 leaves"):
        TreeGrowth(2, [b"x" * 32])


@pytest.mark.parametrize("size", SIZES)
def test_every_leaf_is_proven_and_no_other_one_in_its_place(size: int) -> None:
    leaves = some_leaves(size)
    tree = hashes_of(leaves)
    root = tree_hash(leaves)
    for index in range(size):
        proof = tree.inclusion_proof(index)
        assert is_included(leaves[index], index, size, root, proof)
        assert not is_included(some_leaves(1, salt=9)[0], index, size, root, proof)
        assert not is_included(leaves[index], index, size, some_leaves(1, salt=9)[0], proof)
        assert not is_included(leaves[index], index, size, root, [*proof, root])
        if proof:
            assert not is_included(leaves[index], index, size, root, proof[:-1])
            assert not is_included(leaves[index], index ^ 1, size, root, proof)


@pytest.mark.parametrize("size", [size for size in SIZES if size < 30 or size > 250])
def test_every_earlier_tree_is_proven_to_be_a_beginning(size: int) -> None:
    leaves = some_leaves(size)
    tree = hashes_of(leaves)
    root = tree_hash(leaves)
    for earlier in range(size + 1) if size < 30 else (0, 1, 128, 255, 256, 257, size - 1, size):
        if earlier > size:
            continue
        before = tree_hash(leaves[:earlier])
        proof = tree.consistency_proof(earlier)
        assert is_consistent(earlier, before, size, root, proof)
        assert not is_consistent(earlier, some_leaves(1, salt=9)[0], size, root, proof)
        assert not is_consistent(earlier, before, size, root, [*proof, root])
        if earlier:
            assert not is_consistent(earlier, before, size, some_leaves(1, salt=9)[0], proof)


@given(st.integers(2, 40), st.data())
def test_a_changed_beginning_has_no_proof(size: int, data: st.DataObject) -> None:
    """The honest proof of either tree does not join the root of one with that of the other."""
    earlier = data.draw(st.integers(1, size - 1))
    changed = data.draw(st.integers(0, earlier - 1))
    leaves = some_leaves(size)
    others = [*leaves]
    others[changed] = some_leaves(1, salt=9)[0]
    for proof in (
        hashes_of(leaves).consistency_proof(earlier),
        hashes_of(others).consistency_proof(earlier),
    ):
        before = tree_hash(leaves[:earlier])
        assert not is_consistent(earlier, before, size, tree_hash(others), proof)


def test_what_is_asked_for_outside_of_the_tree_is_refused() -> None:
    tree = hashes_of(some_leaves(5))
    for index in (-1, 5):
        with pytest.raises(ValueError, match="no leaf"):
            tree.inclusion_proof(index)
    with pytest.raises(ValueError, match="asked for 6"):
        tree.consistency_proof(6)
    assert not is_included(b"", 5, 5, b"", [])
    assert not is_consistent(6, b"", 5, b"", [])


@given(st.integers(-1, 80), st.integers(-1, 80), st.lists(st.binary(min_size=32, max_size=32)))
def test_no_proof_of_strange_hashes_holds_or_fails_with_an_error(
    index: int, size: int, proof: list[bytes]
) -> None:
    assert not is_included(b"x" * 32, index, size, b"y" * 32, proof)
    if (index, size) != (0, 0) or proof:
        assert not is_consistent(index, b"x" * 32, size, b"y" * 32, proof)
