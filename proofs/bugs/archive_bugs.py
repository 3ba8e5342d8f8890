"""Seeded bugs of archives and restores: what is archived that is not the log, or not there, and
directories that hold something else than the point."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene
from proofs.patches import Patch
from waltz.archive import commits
from waltz.archive.archiver_shell import ArchiverProcess
from waltz.restore import points, restored_nodes
from waltz.restore.carried_nodes import Carried
from waltz.restore.partition_writing import WrittenPartition
from waltz.storage.directory import restored_files
from waltz.storage.directory.trace_file import SegmentTrace
from waltz.types import TransactionId


class _LateTarget:
    """Puts objects of records once the manifest that names them is there, with the next call."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._late: list[tuple[str, bytes]] = []

    def __getattr__(self, name: str) -> Any:
        late, self._late = self._late, []
        for path, data in late:
            self._target.put_if_absent(path, data)
        return getattr(self._target, name)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path.startswith("log/"):
            self._late.append((path, data))
            return True
        is_new: bool = self._target.put_if_absent(path, data)
        return is_new

    def put(self, path: str, data: bytes) -> None:
        self._target.put(path, data)


def _with_late_objects(make: Callable[..., None]) -> Callable[..., None]:
    def making(
        self: Any, host: Any, open_log: Any, target: Any, *others: Any, **named: Any
    ) -> None:
        make(self, host, open_log, _LateTarget(target), *others, **named)

    return making


def _one_too_many(tell: Callable[..., Any]) -> Callable[..., Any]:
    def telling(self: Any, with_nodes: bool) -> Any:
        told = tell(self, with_nodes)
        marks = {p: TransactionId(mark + 1) for p, mark in told.marks.items()}
        return replace(told, marks=marks)

    return telling


def _always(_: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *arguments: True


def _not_durable(_: Callable[..., None]) -> Callable[..., None]:
    def close(self: Any, held: Any) -> None:
        self.trace = SegmentTrace(self._chain.newest_segment, TransactionId(held.last + 1))
        self._chain.segments.close()
        self._chain = None

    return close


def _unsynced_file(_: Callable[..., None]) -> Callable[..., None]:
    def write(disk: Any, directory: str, name: str, content: bytes) -> None:
        with suppress(FileExistsError):
            disk.open(f"{directory}/{name}", create=True).close()
        file = disk.open(f"{directory}/{name}")
        file.write_at(0, content)
        file.close()

    return write


def _as_they_are(_: Callable[..., Carried]) -> Callable[..., Carried]:
    return lambda nodes, lasts, restore_id: Carried(nodes, ())


def _to_the_end(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda archive, point, partitions: None


def _bug(name: str, caught: Scene, *patches: Patch) -> Bug:
    return Bug(
        name=name,
        breaks="archives",
        patches=patches,
        workloads=("archived",),
        plans=("none", "power_cut"),
        caught=caught,
    )


ARCHIVE_BUGS: Final[tuple[Bug, ...]] = (
    _bug(
        "a manifest is written before the objects that it names",
        Scene(0, "archived", "none"),
        Patch(ArchiverProcess, "__init__", _with_late_objects),
    ),
    _bug(
        "the archiver takes one transaction more than the mark",
        Scene(0, "archived", "none"),
        Patch(ArchiverProcess, "_told", _one_too_many),
    ),
    _bug(
        "a commit that another archiver was faster with counts as done",
        Scene(0, "archived", "none"),
        Patch(commits, "_is_ours", _always),
    ),
    _bug(
        "restored records are not synced before the promises are made",
        Scene(0, "archived", "none"),
        Patch(WrittenPartition, "close", _not_durable),
    ),
    _bug(
        "the control file of a restored directory is not synced",
        Scene(0, "archived", "none"),
        Patch(restored_files, "_write_file", _unsynced_file),
    ),
    _bug(
        "notes of sinks are restored as they were archived",
        Scene(0, "archived", "none"),
        Patch(restored_nodes, "carried_notes", _as_they_are),
    ),
    _bug(
        "a restore to a point takes all that is archived",
        Scene(0, "archived", "none"),
        Patch(points, "_marks", _to_the_end),
    ),
)
