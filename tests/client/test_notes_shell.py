"""Notes: what the coordinator keeps for applications, changed by one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import waltz
from waltz.client.notes_shell import NOTE_BYTES_MAX, ClusterNotes
from waltz.errors import ConfigurationError, CoordinatorLostError, LocalProtocolError
from waltz.host import Host
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


def threads_of_notes() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "waltz-notes"]


def test_notes_that_cannot_be_opened_leave_no_thread_behind(tmp_path: Path) -> None:
    before = threads_of_notes()
    tls = waltz.TlsSettings(authorities=str(tmp_path / "missing.pem"))
    for _ in range(3):
        with pytest.raises(ConfigurationError, match=r"missing\.pem"):
            waltz.open_notes("zookeeper://127.0.0.1:1/waltz", tls=tls)
    assert threads_of_notes() == before


def test_notes_whose_coordinator_cannot_be_told_of_the_end_release_all_else() -> None:
    released: list[str] = []

    class Lost:
        async def close(self) -> None:
            raise CoordinatorLostError("lost")

    def new_host() -> tuple[Host, Callable[[], None]]:
        host: Host = SimpleNamespace(coordinator=Lost())  # type: ignore[assignment]
        return host, lambda: released.append("workers")

    before = threads_of_notes()
    with pytest.raises(CoordinatorLostError):
        ClusterNotes(new_host).close()
    assert released == ["workers"]
    assert threads_of_notes() == before
