"""Small values that a cluster's coordinator keeps for applications, each under a name.

For applications that have to remember a little across machines and restarts, such as which process
has begun a piece of work. A change is a compare-and-set, repeated until there is no conflict: its
input is the newest value, even where a read alone might return an older one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from waltz.cluster.cluster_shell import read_store_params
from waltz.cluster.histories import Histories
from waltz.cluster.log_history_shell import read_log_histories
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.cluster.tree import check_path
from waltz.connections.loop_thread import Closable, LoopThread, NewHost
from waltz.errors import (
    ClientClosedError,
    LocalProtocolError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    VersionConflictError,
)
from waltz.host import Coordinator, Host

NOTE_BYTES_MAX: Final = 256 * 1024
"""Bytes of one note that the coordinator keeps for an application; ZooKeeper takes 1 MiB in all."""

NOTE_SECONDS_MAX: Final = 60.0
"""Seconds that reading or changing a note waits for the coordinator."""


class ClusterNotes(Closable):
    """Notes for threads; a context manager."""

    def __init__(
        self, new_host: NewHost, *, root: str | None = None, thread: LoopThread | None = None
    ) -> None:
        """`thread`: the loop's thread to run on, by default one of its own."""
        self._paths = ClusterPaths(root or DEFAULT_ROOT)
        self._thread = thread or LoopThread("waltz-notes")
        try:
            self._host, self._release_host = self._thread.call(_open(new_host))
        except BaseException:
            self._thread.stop()
            raise

    def read_cluster_key(self) -> UUID:
        """Return the key of the cluster that keeps the notes.

        Raises NoNodeError: there is no cluster; CoordinatorLostError.
        """
        work = read_store_params(self._host.coordinator, self._paths.root)
        return self._thread.call(work, NOTE_SECONDS_MAX).cluster_key

    def read_histories(self) -> Histories:
        """Return the histories of the cluster's log. Raises as `read_cluster_key`;
        RemoteProtocolError: the coordinator's node says something else."""
        work = _read_histories(self._host.coordinator, self._paths)
        return self._thread.call(work, NOTE_SECONDS_MAX)

    def read(self, name: str) -> bytes | None:
        """Return the note, None if there is none; it may have changed since.

        Raises LocalProtocolError: not a name; CoordinatorLostError.
        """
        path = self._path(name)
        return self._thread.call(_read(self._host.coordinator, path), NOTE_SECONDS_MAX)

    def change(self, name: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace the note by `change(note)`, with None if there is no note, and return the new
        one.

        `change` runs on the loop and must not wait; it is called again if another change came in
        between, and if it raises, the note stays as it is. Raises NoNodeError: there is no cluster;
        CoordinatorLostError: the note may have been changed all the same; LocalProtocolError.
        """
        path = self._path(name)
        work = _change(self._host.coordinator, self._paths, path, change)
        return self._thread.call(work, NOTE_SECONDS_MAX)

    def remove(self, name: str) -> None:
        """Delete the note, if there is one. Raises CoordinatorLostError."""
        self._thread.call(_remove(self._host.coordinator, self._path(name)), NOTE_SECONDS_MAX)

    def _path(self, name: str) -> str:
        if "/" in name:
            raise LocalProtocolError(f"{name!r} is not the name of a note; expected no /")
        path = self._paths.note(name)
        check_path(path)
        return path

    def close(self) -> None:
        """Close the connection to the coordinator. Idempotent; in a forked process it does nothing,
        for the connection is the other process's."""
        if self._thread.is_elsewhere:
            return
        try:
            self._thread.call(self._host.coordinator.close(), NOTE_SECONDS_MAX)
        except (ClientClosedError, OperationTimeoutError):
            pass  # closed before, or not within the time limit
        finally:
            self._thread.stop()
            self._release_host()


async def _open(new_host: NewHost) -> tuple[Host, Callable[[], None]]:
    return new_host()


async def _read_histories(coordinator: Coordinator, paths: ClusterPaths) -> Histories:
    key = (await read_store_params(coordinator, paths.root)).cluster_key
    return Histories.kept(key, await read_log_histories(coordinator, paths))


async def _read(coordinator: Coordinator, path: str) -> bytes | None:
    try:
        return (await coordinator.read(path)).data
    except NoNodeError:
        return None


async def _change(
    coordinator: Coordinator,
    paths: ClusterPaths,
    path: str,
    change: Callable[[bytes | None], bytes],
) -> bytes:
    await coordinator.read(paths.root)  # NoNodeError: there is no cluster
    while True:
        try:
            node = await coordinator.read(path)
        except NoNodeError:
            data = _checked(change(None))
            if await _created(coordinator, paths, path, data):
                return data
            continue
        data = _checked(change(node.data))
        try:
            await coordinator.write(path, data, version=node.version)
        except (VersionConflictError, NoNodeError):
            continue  # every conflict means that another process made progress
        return data


async def _created(coordinator: Coordinator, paths: ClusterPaths, path: str, data: bytes) -> bool:
    """Create the note, and the parent node of all notes if it is missing; False if the note
    exists."""
    while True:
        try:
            await coordinator.create(path, data)
        except NodeExistsError:
            return False
        except NoNodeError:
            try:
                await coordinator.create(paths.notes, None)
            except NodeExistsError:
                pass
            continue
        return True


async def _remove(coordinator: Coordinator, path: str) -> None:
    try:
        await coordinator.delete(path)
    except NoNodeError:
        pass


def _checked(data: bytes) -> bytes:
    if len(data) > NOTE_BYTES_MAX:
        raise LocalProtocolError(f"a note of {len(data)} bytes; expected at most {NOTE_BYTES_MAX}")
    return data
