"""Notes: what the coordinator keeps for applications, changed by one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from waltz.client.notes_shell import NOTE_BYTES_MAX
from waltz.errors import LocalProtocolError
from waltz.testing import InMemoryCluster


def test_a_note_is_kept_changed_and_removed() -> None:
    with InMemoryCluster(for_tests=True) as cluster, cluster.open_notes() as notes:
        assert notes.read("a") is None
        assert notes.change("a", lambda found: b"first" if found is None else b"?") == b"first"
        with cluster.open_notes() as others:
            assert others.change("a", lambda found: (found or b"") + b"!") == b"first!"
        assert notes.read("a") == b"first!"
        notes.remove("a")
        notes.remove("a")
        assert notes.read("a") is None


def test_no_change_of_several_at_once_is_lost() -> None:
    def count(found: bytes | None) -> bytes:
        return b"%d" % (int(found or b"0") + 1)

    with InMemoryCluster(for_tests=True) as cluster:

        def work(_: int) -> None:
            with cluster.open_notes() as notes:
                for _ in range(20):
                    notes.change("count", count)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        with cluster.open_notes() as notes:
            assert notes.read("count") == b"80"


def test_a_change_that_raises_changes_nothing() -> None:
    def refuse(found: bytes | None) -> bytes:
        raise ValueError(found)

    with InMemoryCluster(for_tests=True) as cluster, cluster.open_notes() as notes:
        notes.change("a", lambda _: b"1")
        with pytest.raises(ValueError, match="b'1'"):
            notes.change("a", refuse)
        with pytest.raises(LocalProtocolError, match=f"expected at most {NOTE_BYTES_MAX}"):
            notes.change("a", lambda _: b" " * (NOTE_BYTES_MAX + 1))
        with pytest.raises(LocalProtocolError, match="'a/b' is not the name of a note"):
            notes.read("a/b")
        assert notes.read("a") == b"1"
