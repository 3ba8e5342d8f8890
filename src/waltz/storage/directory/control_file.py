"""The open control file of a storage directory: its owner, and the promises of its partitions.

Owns the creation of `waltz-storage.ctl` in one step, and the lock of the directory. A control file
that was cut short is restored from the copies in the node file; the order of updates is in
`partition_promises.py`. When the cluster gets more partitions both files grow, the node file first;
growth that a crash has interrupted is finished at the next opening. Knows nothing of segments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final
from uuid import UUID

from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    ForeignDirectoryError,
)
from waltz.host import Disk, File
from waltz.storage.directory.control_struct import (
    CONTROL_FILE_NAME,
    CONTROL_HEADER,
    FORMAT_VERSION,
    FRESH_ENTRY,
    PARTITION_BYTES,
    Entry,
    encode_entry,
    encode_fresh_file,
    grown,
    header_notes,
    judge_partitions,
    partition_offset,
    struct_offset,
)
from waltz.storage.directory.node_file import (
    LOST,
    NO_COPY,
    NODE_FILE_NAME,
    NodeFile,
    NodeFileContent,
    NodeHeader,
    create_node_file,
    decode_node_file,
    node_file_bytes,
    node_file_count,
    open_node_file,
)
from waltz.storage.directory.partition_promises import PartitionPromises, PromiseFiles
from waltz.storage.directory.restored_files import refuse_unfinished
from waltz.storage.directory.synced_file import SyncedFile
from waltz.storage.directory.trace_file import TraceFile, open_trace_file
from waltz.types import PartitionId

_PUT_BACK: Final = (
    f"put it back, or make an empty one with `touch {{}}/{CONTROL_FILE_NAME}`, which the next start"
    f" restores from {NODE_FILE_NAME}"
)
_REPLACE: Final = (
    "move the directory to another place, make an empty one of its name and start with"
    " --assign-all: servers fill it up, if a majority of the other replicas is well"
)


class ControlFile:
    """An open control file with its node file; while it is open its directory is locked.

    After the first failed write or sync nobody knows which structs the disk holds, so that every
    later update is refused; only a write that found no space may be tried again.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        file: File,
        node_file: NodeFile,
        trace_file: TraceFile,
        release: Callable[[], None],
        *,
        entries: dict[PartitionId, Entry | CorruptionError],
        notes: Sequence[str],
        was_created: bool,
    ) -> None:
        """`entries` are those of partitions that are not as in a fresh directory."""
        self._disk = disk
        self._directory = directory
        self._raw_file = file
        self._files = PromiseFiles(SyncedFile(file, CONTROL_FILE_NAME), node_file, trace_file)
        self.partition_count = node_file.header.partition_count
        """The partitions of the whole cluster, in both files."""
        self._release = release
        self._promises = {
            number: PartitionPromises(self._files, number, entry)
            for number, entry in entries.items()
        }
        self.was_created = was_created
        """Whether the directory was fresh, so that this opening made the file."""
        self.notes = tuple(notes)
        """Faults found at opening that were repaired or do no harm, as sentences for people."""

    @property
    def directory_id(self) -> UUID:
        """The identity of this directory, unique in the cluster."""
        return self._files.node.header.directory_id

    @property
    def partition_ids(self) -> list[PartitionId]:
        """Partitions that are assigned to this directory or damaged, ascending."""
        found = []
        for partition_id in sorted(self._promises.keys() | self._files.node.partition_ids):
            try:
                if self.promises(partition_id).info.is_assigned:
                    found.append(partition_id)
            except CorruptionError:
                found.append(partition_id)
        return found

    def promises(self, partition_id: PartitionId) -> PartitionPromises:
        assert 0 <= partition_id < self.partition_count
        found = self._promises.get(partition_id)
        if found is None:
            found = PartitionPromises(self._files, partition_id, FRESH_ENTRY)
            self._promises[partition_id] = found
        return found

    def grow(self, partition_count: int) -> None:
        """Make room for partitions that were added to the cluster; return once that is durable.

        No update may be under way. Nothing is done if there are `partition_count` partitions or
        more. Raises SegmentFailedError, OSError: the number has not changed; the call may be
        repeated unless a write or a sync has failed.
        """
        if partition_count <= self.partition_count:
            return
        files, disk, directory = self._files, self._disk, self._directory
        files.control.check_sound()
        if files.node.header.partition_count < partition_count:
            files.node = files.node.grow(disk, directory, partition_count)
        files.trace = files.trace.grow(disk, directory, partition_count)
        for offset, data in grown(
            _whole(self._raw_file, partition_count),
            self.partition_count,
            partition_count,
            files.node.partition_ids,
        ):
            files.control.write(offset, data)
        self.partition_count = partition_count

    def close(self) -> None:
        self._files.control.close()
        self._files.node.close()
        self._files.trace.close()
        self._release()


def open_control_file(
    disk: Disk,
    directory: str,
    *,
    cluster_key: UUID,
    partition_count: int,
    assigned: Collection[PartitionId],
    directory_id: UUID,
    wall_milliseconds: int,
) -> ControlFile:
    """Open the control file of `directory`, or make it with `assigned` partitions, and lock it.

    `directory_id` is for a directory that has none yet. Content that one of the files has lost is
    restored from the other. A directory that was made for fewer partitions grows; the new ones are
    not assigned. Raises OSError; and, before anything was touched, ConfigurationError: no such
    directory, or a format of another release; DirectoryInUseError; ForeignDirectoryError: another
    key, more partitions than the cluster has, no control file but partitions or half a restore.
    """
    _check_usable(disk, directory)
    path = f"{directory}/{CONTROL_FILE_NAME}"
    release = None
    if not disk.exists(path):
        node_header = NodeHeader(
            cluster_key, partition_count, directory_id, wall_milliseconds, wall_milliseconds
        )
        release = _create(disk, directory, node_header, assigned)
    was_created = release is not None
    release = release or disk.lock(path)
    files: list[File | NodeFile | TraceFile] = []
    try:
        file = disk.open(path)
        files.append(file)
        notes: list[str] = []
        header = _header(disk, directory, file, cluster_key, partition_count, assigned, notes)
        created, made_for = _check_header(header, directory, cluster_key, partition_count)
        fresh = NodeHeader(cluster_key, partition_count, directory_id, wall_milliseconds, created)
        node_file = _open_node_file(disk, directory, fresh, made_for, notes)
        files.append(node_file)
        own = node_file.header
        notes += [*node_file.notes, *header_notes(header, own)]
        trace_file = open_trace_file(
            disk, directory, directory_id=own.directory_id, partition_count=partition_count
        )
        files.append(trace_file)
        if made_for < partition_count:
            _grow(file, made_for, node_file)
            notes.append(
                f"{directory} was made for {made_for} partitions; grown to {partition_count}"
            )
        entries = _read_entries(file, node_file, notes)
        # Writes of a killed process are seen, but a promise must be durable before it counts.
        file.sync()
        disk.sync_directory(directory)
        return ControlFile(
            disk,
            directory,
            file,
            node_file,
            trace_file,
            release,
            entries=entries,
            notes=notes,
            was_created=was_created,
        )
    except BaseException:
        for each in files:
            each.close()
        release()
        raise


def _check_usable(disk: Disk, directory: str) -> None:
    if not disk.exists(directory):
        raise ConfigurationError(f"there is no storage directory {directory}; create it")
    refuse_unfinished(disk, directory)


def _header(
    disk: Disk,
    directory: str,
    file: File,
    cluster_key: UUID,
    partition_count: int,
    assigned: Collection[PartitionId],
    notes: list[str],
) -> bytes:
    """Return the control file's header. A file that has lost its header gets a new one: partitions
    of which the node file has a copy are judged by that copy, the others have promised nothing.

    The header is written last, so that after a crash the file is restored again. Raises OSError,
    and, before anything was touched, ConfigurationError: the node file cannot help.
    """
    header = file.read_at(0, CONTROL_HEADER.size)
    if len(header) == CONTROL_HEADER.size and any(header):
        return header
    path = f"{directory}/{NODE_FILE_NAME}"
    if not disk.exists(path):
        raise ConfigurationError(
            f"{CONTROL_FILE_NAME} in {directory} has {file.size()} bytes, expected at least"
            f" {CONTROL_HEADER.size}, and there is no {NODE_FILE_NAME} to restore it from: put"
            f" either of them back from a copy, or {_REPLACE}"
        )
    count = _count_in_node_file(disk, path, [partition_count], cluster_key)
    found = _decoded(disk, path, count, cluster_key)
    content = encode_fresh_file(
        cluster_key,
        count,
        assigned=frozenset(assigned),
        wall_milliseconds=found.header.control_file_created_milliseconds,
    )
    lost = [
        name
        for name in _partition_directories(disk, directory)
        if PartitionId(int(name)) not in found.slots
    ]
    if lost:
        raise ConfigurationError(
            f"{CONTROL_FILE_NAME} in {directory} has {file.size()} bytes, expected at least"
            f" {CONTROL_HEADER.size}, and {NODE_FILE_NAME} has no slots of partitions"
            f" {', '.join(lost)}, whose directories are there: put both files back from a copy,"
            f" or {_REPLACE}"
        )
    entries = bytearray(content[CONTROL_HEADER.size :])
    for partition_id in found.slots:
        start = partition_offset(partition_id) - CONTROL_HEADER.size
        entries[start : start + PARTITION_BYTES] = LOST * PARTITION_BYTES
    notes.append(
        f"{directory}/{CONTROL_FILE_NAME} had lost its header, with {file.size()} bytes left;"
        f" restored from {NODE_FILE_NAME}"
    )
    file.write_at(CONTROL_HEADER.size, bytes(entries))
    file.sync()
    file.write_at(0, content[: CONTROL_HEADER.size])
    file.sync()
    return content[: CONTROL_HEADER.size]


def _open_node_file(
    disk: Disk, directory: str, fresh: NodeHeader, made_for: int, notes: list[str]
) -> NodeFile:
    """Open the node file, made with the header `fresh` if there is none, and let it grow to the
    cluster's number of partitions.

    `made_for` is the number of the control file; the node file may have that one or the cluster's.
    Raises as `open_node_file`; ForeignDirectoryError: it is for more partitions than the cluster
    has.
    """
    path, wanted = f"{directory}/{NODE_FILE_NAME}", fresh.partition_count
    if not disk.exists(path):
        create_node_file(disk, directory, fresh)
        notes.append(f"{directory} had no {NODE_FILE_NAME}: made, with ID {fresh.directory_id}")
    count = _count_in_node_file(disk, path, (wanted, made_for), fresh.cluster_key)
    if count > wanted:
        raise ForeignDirectoryError(
            f"{path} was made for {count} partitions, the cluster has {wanted}"
        )
    node_file = open_node_file(
        disk, directory, cluster_key=fresh.cluster_key, partition_count=count
    )
    if count == wanted:
        return node_file
    try:
        return node_file.grow(disk, directory, wanted)
    except BaseException:
        node_file.close()
        raise


def _count_in_node_file(disk: Disk, path: str, counts: Sequence[int], cluster_key: UUID) -> int:
    """Return how many partitions the node file is for. Raises FileNotFoundError."""
    file = disk.open_to_read(path)
    try:
        content = file.read_at(0, node_file_bytes(max(counts)))
        return node_file_count(content, counts, cluster_key)
    finally:
        file.close()


def _whole(file: File, partition_count: int) -> bytes:
    return file.read_at(0, CONTROL_HEADER.size + partition_count * PARTITION_BYTES)


def _grow(file: File, made_for: int, node_file: NodeFile) -> None:
    """Make room in the control file for all partitions that the node file has. Raises OSError."""
    count = node_file.header.partition_count
    for offset, data in grown(_whole(file, count), made_for, count, node_file.partition_ids):
        file.write_at(offset, data)
        file.sync()


def _read_entries(
    file: File, node_file: NodeFile, notes: list[str]
) -> dict[PartitionId, Entry | CorruptionError]:
    """Return the entries of the partitions that are not fresh, repaired where possible."""

    def struct_copy(partition_id: PartitionId) -> bytes:
        try:
            return node_file.slot(partition_id).struct_copy
        except CorruptionError:
            return NO_COPY

    count = node_file.header.partition_count
    content = _whole(file, count)
    judgements = judge_partitions(content, count, struct_copy, node_file.partition_ids)
    for partition_id, judgement in judgements.items():
        entry, offset = judgement.entry, partition_offset(partition_id)
        if judgement.repair is not None:
            file.write_at(offset, judgement.repair)
        elif isinstance(entry, Entry) and struct_copy(partition_id) != encode_entry(entry):
            # A failed sync may have left this entry in memory only.
            file.write_at(struct_offset(partition_id, entry.twin), encode_entry(entry))
        if judgement.note is not None:
            notes.append(judgement.note)
    return {partition_id: judgement.entry for partition_id, judgement in judgements.items()}


def _create(
    disk: Disk, directory: str, node_header: NodeHeader, assigned: Collection[PartitionId]
) -> Callable[[], None] | None:
    """Make the node file and the control file and return the release of the lock.

    The lock is taken before the control file has its name, so that of two processes in one fresh
    directory only one makes the file; None if the other process was faster.
    """
    _check_fresh(disk, directory, node_header)
    content = encode_fresh_file(
        node_header.cluster_key,
        node_header.partition_count,
        assigned=frozenset(assigned),
        wall_milliseconds=node_header.created_milliseconds,
    )
    path = f"{directory}/{CONTROL_FILE_NAME}"
    temporary = f"{path}.new"
    try:
        file = disk.open(temporary, create=True)
    except FileExistsError:
        file = disk.open(temporary)
    try:
        try:
            release = disk.lock(temporary)
        except FileNotFoundError:
            return None
        try:
            if disk.exists(path):
                release()
                return None
            create_node_file(disk, directory, node_header)
            file.truncate(0)
            file.write_at(0, content)
            file.sync()
            disk.rename(temporary, path)
            disk.sync_directory(directory)
        except BaseException:
            release()
            raise
        return release
    finally:
        file.close()


def _check_fresh(disk: Disk, directory: str, node_header: NodeHeader) -> None:
    """Raises ForeignDirectoryError: there once was a control file."""
    if leftovers := _partition_directories(disk, directory):
        is_restorable = disk.exists(f"{directory}/{NODE_FILE_NAME}")
        back = _PUT_BACK.format(directory) if is_restorable else "put it back"
        raise ForeignDirectoryError(
            f"{directory} holds partitions {', '.join(leftovers)} but no {CONTROL_FILE_NAME}:"
            f" {back}, or {_REPLACE}"
        )
    path = f"{directory}/{NODE_FILE_NAME}"
    try:
        counts, key = [node_header.partition_count], node_header.cluster_key
        count = _count_in_node_file(disk, path, counts, key)
    except FileNotFoundError:
        return
    found = _decoded(disk, path, count, key)
    if found.slots:
        raise ForeignDirectoryError(
            f"{path} remembers sessions of partitions {', '.join(map(str, sorted(found.slots)))},"
            f" but there is no {CONTROL_FILE_NAME}: {_PUT_BACK.format(directory)}, or {_REPLACE}"
        )


def _partition_directories(disk: Disk, directory: str) -> list[str]:
    return [name for name in disk.list_directory(directory) if name.isdigit()]


def _decoded(disk: Disk, path: str, count: int, cluster_key: UUID) -> NodeFileContent:
    """Return the content of the node file. Raises as `decode_node_file`; OSError."""
    file = disk.open_to_read(path)
    try:
        content = file.read_at(0, node_file_bytes(count))
    finally:
        file.close()
    return decode_node_file(content, cluster_key=cluster_key, partition_count=count, place=path)


def _check_header(
    header: bytes, directory: str, cluster_key: UUID, partition_count: int
) -> tuple[int, int]:
    """Return the time of creation and the number of partitions in the header. Raises
    ConfigurationError, ForeignDirectoryError."""
    version, created, found_key, found_count, _ = CONTROL_HEADER.unpack(header)
    if version != FORMAT_VERSION:
        raise ConfigurationError(
            f"{CONTROL_FILE_NAME} in {directory} has format version {version};"
            f" this release knows {FORMAT_VERSION}"
        )
    if found_key != cluster_key.bytes:
        raise ForeignDirectoryError(
            f"{directory} belongs to cluster {UUID(bytes=found_key)}, not to {cluster_key}"
        )
    if not 0 < found_count <= partition_count:
        raise ForeignDirectoryError(
            f"{directory} was made for {found_count} partitions, the cluster has {partition_count}"
        )
    return int(created), int(found_count)
