"""Seeded bugs of the storage node: what is called durable and is not, what is fenced and is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from proofs.bugs.bug import Bug, Scene, forgotten
from proofs.patches import Patch
from waltz.errors import FencedError
from waltz.storage.directory.partition_promises import PartitionPromises
from waltz.storage.directory.synced_file import SyncedFile
from waltz.storage.far_sessions_shell import SESSION_STEP_MAX, FarSessions
from waltz.storage.journal.pacing import JournalPacing
from waltz.storage.log import open_segments
from waltz.storage.log import segment_recovery as recovery
from waltz.storage.log.segment import SEGMENT_HEADER_BYTES, Segment
from waltz.storage.log.segments import SegmentChain
from waltz.storage.partition_replica import AcceptedDamage, StoragePartition
from waltz.types import TransactionId


def _syncing_before(write: Callable[..., None]) -> Callable[..., None]:
    def written(self: Any, batch: Any, **more: Any) -> None:
        self.data_file.sync()
        write(self, batch, **more)

    return written


def _with_data_file(wrap: Callable[[Any], Any]) -> Callable[..., Callable[..., None]]:
    """The segment does as it does, with another file."""

    def change(sync: Callable[..., None]) -> Callable[..., None]:
        def synced(self: Any) -> None:
            file = self.data_file
            self.data_file = wrap(file)
            try:
                sync(self)
            finally:
                self.data_file = file

        return synced

    return change


class _Replaced:
    """A file or a disk, but for some of what it does."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _UnsyncedFile(_Replaced):
    def sync(self) -> None: ...


class _UnsyncedNames(_Replaced):
    def sync_directory(self, path: str) -> None: ...


class _StubbornFile(_Replaced):
    def sync(self) -> None:
        try:
            self._original.sync()
        except OSError:
            self._original.sync()


def _believing_what_is_in_reach(check: Callable[..., Any]) -> Callable[..., Any]:
    async def checked(self: Any, partition_id: Any, session_id: int, known: int) -> None:
        if session_id - max(known, -1) > SESSION_STEP_MAX:
            await check(self, partition_id, session_id, known)

    return checked


def _cutting(further: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def change(cut: Callable[..., None]) -> Callable[..., None]:
        def truncated(self: Any, last_transaction_id: TransactionId, *accepted: Any) -> None:
            last = max(-1, last_transaction_id - further)
            cut(self, TransactionId(min(last, self.next_transaction_id - 1)), *accepted)

        return truncated

    return change


def _cutting_in_memory(_: Callable[..., None]) -> Callable[..., None]:
    def truncated(self: Any, last_transaction_id: TransactionId) -> None:
        self.write_index()
        count = last_transaction_id + 1 - self.first_transaction_id
        size = int(self._offsets(count - 1, 1)[1]) if count else SEGMENT_HEADER_BYTES
        self._indexed_count, self.has_lost_end = count, False
        self.size = self.durable_size = size
        self.next_transaction_id = self.durable_next = TransactionId(last_transaction_id + 1)

    return truncated


def _admitting_older_sessions(admit: Callable[..., None]) -> Callable[..., None]:
    def admitted(self: Any, request: Any) -> None:
        try:
            admit(self, request)
        except FencedError:
            self.check_healthy()

    return admitted


def _without_syncs_of_names(create: Callable[..., Any]) -> Callable[..., Any]:
    def created(home: Any, *arguments: Any) -> Any:
        return create(replace(home, disk=_UnsyncedNames(home.disk)), *arguments)

    return created


def _writing_unsynced(_: Callable[..., None]) -> Callable[..., None]:
    return lambda self, offset, data: self._file.write_at(offset, data)


def _knowing_of_nothing_durable(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda home, data, trust, lost_count: data.first_transaction_id


def _naming_the_time_before(step: Callable[..., Any]) -> Callable[..., Any]:
    def stepped(self: Any, events: Any, now: float) -> Any:
        return step(self, [replace(event, ended=event.began) for event in events], now)

    return stepped


STORAGE_BUGS: Final = (
    Bug(
        name="an append is answered before it is synced",
        breaks="I1 durability",
        patches=(
            Patch(Segment, "write", _syncing_before),
            Patch(Segment, "sync", _with_data_file(_UnsyncedFile)),
        ),
        workloads=("append",),
        plans=("power_cut",),
        caught=Scene(0, "append", "power_cut"),
    ),
    Bug(
        name="a failed sync is tried again and believed",
        breaks="I1 durability",
        patches=(Patch(Segment, "sync", _with_data_file(_StubbornFile)),),
        workloads=("append", "bank"),
        plans=("failing_disk",),
        caught=Scene(92, "append", "failing_disk"),
    ),
    Bug(
        name="requests of an older session are taken",
        breaks="I3 one line of commits",
        patches=(Patch(StoragePartition, "admit", _admitting_older_sessions),),
        workloads=("append", "bank"),
        plans=("stale_server",),
        caught=Scene(1, "append", "stale_server"),
    ),
    Bug(
        name="a truncation removes one record more",
        breaks="I12 convergence",
        patches=(Patch(SegmentChain, "truncate", _cutting(1)),),
        workloads=("bank",),
        plans=("swizzle",),
        caught=Scene(1011, "bank", "swizzle"),
    ),
    Bug(
        name="a truncation leaves one record too many",
        breaks="I2 agreement",
        patches=(Patch(SegmentChain, "truncate", _cutting(-1)),),
        workloads=("append", "bank"),
        plans=("power_cut", "swizzle"),
        caught=Scene(38, "bank", "power_cut"),
    ),
    Bug(
        name="a truncation cuts in memory only",
        breaks="I12 convergence",
        patches=(Patch(Segment, "truncate", _cutting_in_memory),),
        workloads=("append",),
        plans=("lone_tails", "power_cut"),
        caught=Scene(89, "append", "lone_tails"),
    ),
    Bug(
        name="a new segment's name is not synced",
        breaks="I1 durability",
        patches=(Patch(open_segments, "create_segment", _without_syncs_of_names),),
        workloads=("append",),
        plans=("power_cut",),
        caught=Scene(0, "append", "power_cut"),
    ),
    Bug(
        name="control file and node file are not synced",
        breaks="I12 convergence",
        patches=(Patch(SyncedFile, "write", _writing_unsynced),),
        workloads=("append",),
        plans=("power_cut",),
        caught=Scene(2, "append", "power_cut"),
    ),
    Bug(
        name="a replica without its newest segment takes its log for a shorter one",
        breaks="I1 durability",
        patches=(Patch(PartitionPromises, "trace", forgotten),),
        workloads=("append", "bank"),
        plans=("lost_files",),
        caught=Scene(3, "bank", "lost_files"),
    ),
    Bug(
        name="a storage node believes every session in reach of the last one",
        breaks="I12 convergence",
        patches=(Patch(FarSessions, "check", _believing_what_is_in_reach),),
        workloads=("append", "bank"),
        plans=("hostile_peers",),
        caught=Scene(0, "append", "hostile_peers"),
    ),
    Bug(
        name="damage at the end of the log is cut as a torn tail",
        breaks="I1 durability",
        patches=(Patch(recovery, "_durable_next", _knowing_of_nothing_durable),),
        workloads=("append", "bank"),
        plans=("bit_flips",),
        caught=Scene(13, "bank", "bit_flips"),
    ),
    Bug(
        name="a damaged replica votes",
        breaks="I12 convergence",
        patches=(Patch(AcceptedDamage, "check_rest", forgotten),),
        workloads=("append", "bank"),
        plans=("bit_flips",),
        caught=Scene(69, "bank", "bit_flips"),
    ),
    Bug(
        name="a journal gives the newest record the time before its drain",
        breaks="I13 times",
        patches=(Patch(JournalPacing, "step", _naming_the_time_before),),
        workloads=("append",),
        plans=("none", "slow_disk"),
        caught=Scene(0, "append", "none"),
    ),
)
