"""The rules of the tree, against a list of what was done to it (CM-01, CM-02)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from waltz.cluster.tree import (
    COORDINATOR_NODE_BYTES_MAX,
    COORDINATOR_PATH_CHARACTERS_MAX,
    Tree,
    check_path,
)
from waltz.errors import (
    CoordinationError,
    LocalProtocolError,
    NodeExistsError,
    NoNodeError,
    RemoteProtocolError,
    VersionConflictError,
)
from waltz.host import Node


def test_no_value_differs_from_an_empty_one() -> None:
    tree = Tree()
    tree.create("/none", None)
    tree.create("/empty", b"")
    assert tree.read("/none") == Node(None, 0, 0)
    assert tree.read("/empty") == Node(b"", 0, 0)


def test_a_write_at_the_version_read_raises_the_version() -> None:
    tree = Tree()
    tree.create("/a", b"1")
    assert tree.write("/a", b"2", version=0) == 1
    assert tree.read("/a") == Node(b"2", 1, 0)
    with pytest.raises(VersionConflictError):
        tree.write("/a", b"3", version=0)
    assert tree.read("/a").data == b"2"


def test_any_version_writes_and_deletes_unconditionally() -> None:
    tree = Tree()
    tree.create("/a", b"1")
    assert tree.write("/a", b"2", version=-1) == 1
    tree.delete("/a")
    with pytest.raises(NoNodeError):
        tree.read("/a")


def test_delete_at_another_version_is_refused() -> None:
    tree = Tree()
    tree.create("/a", b"1")
    with pytest.raises(VersionConflictError):
        tree.delete("/a", version=1)
    assert tree.children("/") == ["a"]


def test_a_node_with_children_is_not_deleted() -> None:
    tree = Tree()
    tree.create("/a", None)
    tree.create("/a/b", None)
    with pytest.raises(CoordinationError, match="children"):
        tree.delete("/a")
    with pytest.raises(CoordinationError):
        tree.delete("/")


def test_creating_needs_a_parent_and_a_free_name() -> None:
    tree = Tree()
    with pytest.raises(NoNodeError):
        tree.create("/a/b", None)
    tree.create("/a", None)
    with pytest.raises(NodeExistsError):
        tree.create("/a", None)
    with pytest.raises(NodeExistsError):
        tree.create("/", None)


def test_child_version_counts_creations_and_deletions() -> None:
    tree = Tree()
    tree.create("/a", None)
    for expected in (1, 3, 5):
        tree.create("/a/b", None)
        assert tree.read("/a").child_version == expected
        tree.delete("/a/b")
    assert tree.read("/a") == Node(None, 0, 6)


def test_sequence_numbers_count_creations_and_never_repeat() -> None:
    """As in ZooKeeper, where a server's second node of its life is s_0000000001."""
    tree = Tree()
    tree.create("/a", None)
    assert tree.create("/a/s_", b"", sequential=True) == "/a/s_0000000000"
    tree.delete("/a/s_0000000000")
    tree.create("/a/other", None)
    assert tree.create("/a/s_", b"", sequential=True) == "/a/s_0000000002"


def test_ephemeral_nodes_go_with_their_session_only() -> None:
    tree = Tree()
    tree.create("/a", None)
    tree.create("/a/2", b"", owner="one")
    tree.create("/a/1", b"", owner="one")
    tree.create("/a/3", b"", owner="two")
    assert tree.end_session("one") == ["/a/1", "/a/2"]
    assert tree.children("/a") == ["3"]
    assert tree.read("/a").child_version == 5
    assert tree.end_session("one") == []


def test_ephemeral_nodes_have_no_children() -> None:
    tree = Tree()
    tree.create("/a", None, owner="one")
    with pytest.raises(CoordinationError, match="ephemeral"):
        tree.create("/a/b", None)


def test_differs_sees_data_children_creation_and_deletion() -> None:
    tree = Tree()
    assert not tree.differs("/a", None)
    tree.create("/a", b"")
    assert tree.differs("/a", None)
    seen = tree.read("/a")
    assert not tree.differs("/a", seen)
    tree.write("/a", b"", version=0)
    assert tree.differs("/a", seen)
    seen = tree.read("/a")
    tree.create("/a/b", None)
    assert tree.differs("/a", seen)
    tree.delete("/a/b")
    tree.delete("/a")
    assert tree.differs("/a", seen)


@pytest.mark.parametrize(
    "path", ["", "a", "a/b", "/a/", "//", "/a//b", "/ /b", "/a/.", "/../b", "/a\0b"]
)
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(LocalProtocolError, match="is not a node path"):
        check_path(path)
    with pytest.raises(LocalProtocolError):
        Tree().read(path)


def test_paths_and_data_are_bounded() -> None:
    with pytest.raises(LocalProtocolError, match="characters"):
        check_path("/" + "a" * COORDINATOR_PATH_CHARACTERS_MAX)
    tree = Tree()
    too_much = bytes(COORDINATOR_NODE_BYTES_MAX + 1)
    with pytest.raises(CoordinationError, match="expected at most"):
        tree.create("/a", too_much)
    tree.create("/a", too_much[1:])
    with pytest.raises(CoordinationError, match="expected at most"):
        tree.write("/a", too_much, version=0)


def test_a_snapshot_leaves_ephemeral_nodes_out_and_counts_their_deletion() -> None:
    """An assignment tagged with a child version must not fit a later membership (CM-12)."""
    tree = Tree()
    tree.create("/a", b"\x00\xff")
    tree.create("/a/s_", b"", owner="one", sequential=True)
    assert tree.read("/a").child_version == 1
    restored = Tree.from_snapshot(json.loads(json.dumps(tree.snapshot())))
    assert restored.children("/a") == []
    assert restored.read("/a") == Node(b"\x00\xff", 0, 2)
    assert restored.create("/a/s_", b"", sequential=True) == "/a/s_0000000001"


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"data": None, "version": 0, "child_version": 0},
        {"data": 1, "version": 0, "child_version": 0, "children": {}},
        {"data": "?", "version": 0, "child_version": 0, "children": {}},
        {"data": None, "version": -1, "child_version": 0, "children": {}},
        {"data": None, "version": 0, "child_version": 1, "children": {}},
        {"data": None, "version": 0, "child_version": 0, "children": {"a": {}}},
        {"data": None, "version": 0, "child_version": 1, "children": {"a": None}},
    ],
)
def test_what_is_no_snapshot_is_refused(document: object) -> None:
    with pytest.raises(RemoteProtocolError):
        Tree.from_snapshot(document)


NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))


class TreeAgainstModel(RuleBasedStateMachine):
    """The model is a flat dictionary and recounts everything."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree()
        self.nodes: dict[str, tuple[bytes, str | None, int]] = {}
        self.child_changes: dict[str, int] = {"": 0}

    @rule(path=PATHS, owner=st.sampled_from([None, "one", "two"]))
    def create(self, path: str, owner: str | None) -> None:
        parent = path.rpartition("/")[0]
        possible = (
            path not in self.nodes
            and (not parent or parent in self.nodes)
            and (not parent or self.nodes[parent][1] is None)
        )
        try:
            self.tree.create(path, b"", owner=owner)
            assert possible
            self.nodes[path] = b"", owner, 0
            self.child_changes[path] = 0
            self.child_changes[parent] += 1
        except CoordinationError:
            assert not possible

    @rule(path=PATHS, data=st.binary(max_size=2), version=st.integers(-1, 2))
    def write(self, path: str, data: bytes, version: int) -> None:
        possible = path in self.nodes and version in (-1, self.nodes[path][2])
        try:
            self.tree.write(path, data, version=version)
            assert possible
            self.nodes[path] = data, self.nodes[path][1], self.nodes[path][2] + 1
        except CoordinationError:
            assert not possible

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        possible = path in self.nodes and not any(p.startswith(f"{path}/") for p in self.nodes)
        try:
            self.tree.delete(path)
            assert possible
            self._gone(path)
        except CoordinationError:
            assert not possible

    @rule(owner=st.sampled_from(["one", "two"]))
    def end_session(self, owner: str) -> None:
        expected = sorted(path for path, node in self.nodes.items() if node[1] == owner)
        assert self.tree.end_session(owner) == expected
        for path in expected:
            self._gone(path)

    @rule()
    def restart(self) -> None:
        self.tree = Tree.from_snapshot(self.tree.snapshot())
        for path in [path for path, node in self.nodes.items() if node[1] is not None]:
            self._gone(path)

    def _gone(self, path: str) -> None:
        del self.nodes[path]
        self.child_changes[path.rpartition("/")[0]] += 1

    @invariant()
    def agree(self) -> None:
        self.tree.check_invariants()
        for path, (data, _, version) in self.nodes.items():
            assert self.tree.read(path) == Node(data, version, self.child_changes[path])
        names = sorted(path[1:] for path in self.nodes if path.count("/") == 1)
        assert self.tree.children("/") == names
        assert self.tree.read("/").child_version == self.child_changes[""]


TestTreeAgainstModel = TreeAgainstModel.TestCase


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda s: st.dictionaries(
            st.sampled_from(["data", "version", "child_version", "children", "a"]), s
        ),
    )
)
def test_a_damaged_snapshot_raises_nothing_else(document: object) -> None:
    try:
        Tree.from_snapshot(document).check_invariants()
    except (RemoteProtocolError, LocalProtocolError):
        pass
