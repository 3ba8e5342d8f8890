"""A tree of versioned nodes in memory, with ZooKeeper's rules.

Owns paths, versions, child versions, sequence numbers and the owners of ephemeral nodes. Knows
nothing of time, sessions' lives, connections or files: the server of the tree decides when a
session ends and what is saved. The embedded coordinator and the simulated one serve this same tree.

Always true: a node's child version counts the children ever created plus those deleted, so its sum
with the number of children is twice the number ever created, from which sequence numbers come.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from waltz.errors import (
    CoordinationError,
    LocalProtocolError,
    NodeExistsError,
    NoNodeError,
    RemoteProtocolError,
    VersionConflictError,
)
from waltz.host import ANY_VERSION, Node

COORDINATOR_NODES_MAX: Final = 100_000
"""Nodes of one tree."""

COORDINATOR_NODE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of the data of one node, as ZooKeeper's default."""

COORDINATOR_PATH_CHARACTERS_MAX: Final = 1024
"""Characters of one path."""

PATHS_CHECKED_MAX: Final = 1024
"""Sound paths that are remembered, so that each is taken apart once."""

ROOT = "/"


@lru_cache(maxsize=PATHS_CHECKED_MAX)
def check_path(path: str) -> None:
    """Raises LocalProtocolError: not absolute, an empty, blank or dotted part, or too long."""
    first, *parts = path.split("/")
    if path != ROOT and (
        first
        or not parts
        or any(not part.strip() or part in (".", "..") or "\0" in part for part in parts)
    ):
        raise LocalProtocolError(f"{path!r} is not a node path; expected /name/name")
    if len(path) > COORDINATOR_PATH_CHARACTERS_MAX:
        raise LocalProtocolError(
            f"the node path has {len(path)} characters; expected at most"
            f" {COORDINATOR_PATH_CHARACTERS_MAX}"
        )


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


@dataclass(slots=True)
class _Entry:
    data: bytes | None
    owner: str | None
    version: int = 0
    child_version: int = 0
    children: dict[str, _Entry] = field(default_factory=dict)


class Tree:
    """The nodes. `owner` of an ephemeral node is any text that names a session."""

    def __init__(self) -> None:
        self._root = _Entry(None, None)
        self._count = 1

    def read(self, path: str, reader: str | None = None) -> Node:
        """Return the node; `reader` names the session that asks. Raises NoNodeError."""
        entry = self._entry(path)
        is_own = entry.owner is not None and entry.owner == reader
        return Node(entry.data, entry.version, entry.child_version, is_own)

    def children(self, path: str) -> Sequence[str]:
        """Return the children's names, sorted. Raises NoNodeError."""
        return sorted(self._entry(path).children)

    def differs(self, path: str, seen: Node | None) -> bool:
        """Whether the node differs from `seen`; None stands for no node."""
        try:
            node = self.read(path)
        except NoNodeError:
            return seen is not None
        return (
            seen is None or node.version != seen.version or node.child_version != seen.child_version
        )

    def create(
        self, path: str, data: bytes | None, *, owner: str | None = None, sequential: bool = False
    ) -> str:
        """Create a node and return its path; `owner` makes it ephemeral.

        Raises NodeExistsError, NoNodeError (its parent), CoordinationError: the parent is
        ephemeral, the data or the tree too large.
        """
        check_path(path)
        parent_path = parent_of(path)
        parent = self._entry(parent_path)
        if parent.owner is not None:
            raise CoordinationError(f"ephemeral nodes have no children: {parent_path}")
        name = path.rpartition("/")[2]
        if sequential:
            created_count = (parent.child_version + len(parent.children)) // 2
            name = f"{name}{created_count:010d}"
        if not name or name in parent.children:
            raise NodeExistsError(f"node exists: {path}")
        _check_size(path, data)
        if self._count >= COORDINATOR_NODES_MAX:
            raise CoordinationError(f"the tree is full: it has {self._count} nodes")
        parent.children[name] = _Entry(data, owner)
        parent.child_version += 1
        self._count += 1
        return f"{parent_path.rstrip('/')}/{name}"

    def write(self, path: str, data: bytes, *, version: int) -> int:
        """Replace the data if the node is at `version` and return the new version.

        Raises NoNodeError, VersionConflictError.
        """
        entry = self._entry(path)
        _check_version(path, entry, version)
        _check_size(path, data)
        entry.data = data
        entry.version += 1
        return entry.version

    def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        """Raises NoNodeError, VersionConflictError, CoordinationError: it has children."""
        entry = self._entry(path)
        _check_version(path, entry, version)
        if entry.children or entry is self._root:
            raise CoordinationError(f"node has children: {path}")
        parent = self._entry(parent_of(path))
        del parent.children[path.rpartition("/")[2]]
        parent.child_version += 1
        self._count -= 1

    def end_session(self, owner: str) -> Sequence[str]:
        """Delete the ephemeral nodes of `owner` and return their paths, sorted."""
        paths = sorted(path for path, entry in self._walk("", self._root) if entry.owner == owner)
        for path in paths:
            self.delete(path)
        return paths

    def snapshot(self) -> dict[str, Any]:
        """Return the tree, fit for JSON, as it will be once every session has ended.

        A child version counts the ephemeral nodes as created and deleted, so it never decreases
        over a restart: an assignment tagged with an old one is not taken for a later one.
        """
        return _entry_document(self._root)

    @classmethod
    def from_snapshot(cls, document: object) -> Tree:
        """Return the tree of a snapshot. Raises RemoteProtocolError: `document` is none."""
        tree = cls()
        tree._root = _entry_from_document(document, ROOT)
        tree._count = sum(1 for _ in tree._walk("", tree._root))
        return tree

    def check_invariants(self) -> None:
        entries = list(self._walk("", self._root))
        assert self._count == len(entries)
        for path, entry in entries:
            assert (entry.child_version + len(entry.children)) % 2 == 0, path
            assert entry.child_version >= len(entry.children), path
            assert entry.owner is None or not entry.children, path

    def _walk(self, path: str, entry: _Entry) -> list[tuple[str, _Entry]]:
        found = [(path or ROOT, entry)]
        for name, child in entry.children.items():
            found += self._walk(f"{path}/{name}", child)
        return found

    def _entry(self, path: str) -> _Entry:
        check_path(path)
        entry = self._root
        for name in path.split("/")[1:] if path != ROOT else ():
            child = entry.children.get(name)
            if child is None:
                raise NoNodeError(f"no node: {path}")
            entry = child
        return entry


def _check_version(path: str, entry: _Entry, version: int) -> None:
    if version not in (ANY_VERSION, entry.version):
        raise VersionConflictError(f"node {path} is at version {entry.version}, not {version}")


def _check_size(path: str, data: bytes | None) -> None:
    if data is not None and len(data) > COORDINATOR_NODE_BYTES_MAX:
        raise CoordinationError(
            f"the data for node {path} has {len(data)} bytes; expected at most"
            f" {COORDINATOR_NODE_BYTES_MAX}"
        )


def _entry_document(entry: _Entry) -> dict[str, Any]:
    kept = {name: child for name, child in entry.children.items() if child.owner is None}
    return {
        "data": None if entry.data is None else b64encode(entry.data).decode("ascii"),
        "version": entry.version,
        "child_version": entry.child_version + len(entry.children) - len(kept),
        "children": {name: _entry_document(kept[name]) for name in sorted(kept)},
    }


def _entry_from_document(document: object, path: str) -> _Entry:
    match document:
        case {
            "data": str() | None as data,
            "version": int() as version,
            "child_version": int() as child_version,
            "children": Mapping() as children,
        } if version >= 0 and child_version >= len(children):
            pass
        case _:
            raise RemoteProtocolError(f"the saved tree has no valid node at {path}")
    try:
        entry = _Entry(
            None if data is None else b64decode(data, validate=True), None, version, child_version
        )
    except ValueError as error:
        raise RemoteProtocolError(f"data of node {path} of a saved tree: {error}") from error
    for name, child in children.items():
        child_path = f"{path.rstrip('/')}/{name}"
        check_path(child_path)
        entry.children[name] = _entry_from_document(child, child_path)
    if (child_version + len(children)) % 2:
        raise RemoteProtocolError(
            f"node {path} of a saved tree has the child version {child_version}; expected 0 or more"
        )
    return entry
