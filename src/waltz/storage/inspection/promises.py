"""The node's promises for its partitions: control file and node file, judged together.

Owns the findings about both files, and the promises that hold in spite of them: the node would come
to the same ones, by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from waltz.errors import ConfigurationError, CorruptionError, WaltzError
from waltz.host import Disk
from waltz.limits import PARTITIONS_MAX
from waltz.storage.directory.control_struct import (
    ASSIGNED,
    AVAILABLE,
    CONTROL_FILE_NAME,
    CONTROL_HEADER,
    FORMAT_VERSION,
    FRESH,
    PARTITION_BYTES,
    READS_DIFFER,
    Entry,
    Judgement,
    PartitionInfo,
    encode_entry,
    header_notes,
    judge_partitions,
)
from waltz.storage.directory.node_file import (
    NO_COPY,
    NODE_FILE_NAME,
    NodeFileContent,
    Slot,
    decode_node_file,
    node_file_bytes,
)
from waltz.storage.directory.trace_file import (
    TRACE_FILE_NAME,
    SegmentTrace,
    decode_trace_file,
    trace_file_bytes,
)
from waltz.storage.inspection.findings import Finding, FindingKind
from waltz.storage.inspection.survey import Control, file_size, read_control, read_file
from waltz.types import NO_SESSION, NOTHING, PartitionId

KNOWN_FLAGS = AVAILABLE | READS_DIFFER | ASSIGNED


@dataclass(frozen=True, slots=True)
class Promises:
    """The promises in a storage directory; control and node are None if the file is missing or
    unreadable."""

    control: Control | None
    node: NodeFileContent | None
    partition_count: int
    """The partitions of the whole cluster, as far as that is known."""
    judgements: Mapping[PartitionId, Judgement]
    traces: Mapping[PartitionId, SegmentTrace]
    """The traces that check out, by partition."""
    findings: tuple[Finding, ...]

    @property
    def cluster_key(self) -> UUID | None:
        """The key in the node file if there is one, for that file has a checksum; otherwise the one
        in the control file."""
        if self.node is not None:
            return self.node.header.cluster_key
        return None if self.control is None else self.control.cluster_key

    def info(self, partition_id: PartitionId | None) -> PartitionInfo | None:
        """Return the partition's promises; None if none can be trusted."""
        if partition_id is None or partition_id >= self.partition_count:
            return None
        judgement = self.judgements.get(partition_id)
        if judgement is None:
            return FRESH if self.control is not None else None
        return None if isinstance(judgement.entry, CorruptionError) else judgement.entry.info

    def slot(self, partition_id: PartitionId | None) -> Slot | None:
        """Return the partition's slot in the node file; None if there is none that can be
        trusted."""
        if self.node is None or partition_id is None:
            return None
        slot = self.node.slots.get(partition_id)
        return None if isinstance(slot, CorruptionError) else slot

    def index_is_proof(self, partition_id: PartitionId | None) -> bool:
        """Whether this release was the last to write the partition."""
        if partition_id is None:
            return False
        judgement, slot = self.judgements.get(partition_id), self.slot(partition_id)
        return (
            slot is not None
            and slot.index_is_ours
            and judgement is not None
            and isinstance(judgement.entry, Entry)
            and slot.struct_copy == encode_entry(judgement.entry)
        )


NO_PROMISES = Promises(None, None, 0, {}, {}, ())


def read_promises(disk: Disk, directory: str, wait: Callable[[], None] | None = None) -> Promises:
    """Read both files of the storage directory.

    `wait` is called between two readings: a node may write one of the files while the other is
    read, so a finding is believed only if the second reading has it too. None: nobody writes.
    Raises OSError.
    """
    promises = _read_once(disk, directory)
    if not promises.findings or wait is None:
        return promises
    wait()
    again = _read_once(disk, directory)
    findings = tuple(finding for finding in again.findings if finding in promises.findings)
    return replace(again, findings=findings)


def _read_once(disk: Disk, directory: str) -> Promises:
    path = f"{directory}/{CONTROL_FILE_NAME}"
    try:
        control = read_control(disk, path)
    except ConfigurationError:
        missing = "the control file is missing; the node refuses to start without it"
        return Promises(None, None, 0, {}, {}, (Finding(FindingKind.PROMISE, path, missing),))
    except CorruptionError as error:
        return Promises(None, None, 0, {}, {}, (Finding(FindingKind.PROMISE, path, str(error)),))
    findings = [Finding(FindingKind.HEADER, path, problem) for problem in _header_problems(control)]
    node = _read_node_file(disk, directory, control, findings)
    # Without a node file that confirms it, the header's count is believed as far as entries go.
    count = len(control.entries) if node is None else node.header.partition_count
    judgements = _judge(control, node, count)
    findings += [
        Finding(FindingKind.PROMISE, path, text)
        for partition_id, judgement in judgements.items()
        for text in _promise_problems(partition_id, judgement)
    ]
    promises = Promises(control, node, count, judgements, {}, ())
    traces = {} if node is None else _read_traces(disk, directory, promises, node, findings)
    return replace(promises, traces=traces, findings=tuple(findings))


def _read_traces(
    disk: Disk,
    directory: str,
    promises: Promises,
    node: NodeFileContent,
    findings: list[Finding],
) -> dict[PartitionId, SegmentTrace]:
    """Return the traces that check out; add the faults of their file to `findings`."""
    path = f"{directory}/{TRACE_FILE_NAME}"
    count = node.header.partition_count
    expected = [
        partition_id
        for partition_id, slot in node.slots.items()
        if isinstance(slot, Slot) and slot.is_traced and promises.index_is_proof(partition_id)
    ]
    try:
        content = read_file(disk, path, bytes_max=trace_file_bytes(count) + 1)
    except FileNotFoundError:
        if expected:
            findings.append(
                Finding(FindingKind.PROMISE, path, "missing; no partition votes without it")
            )
        return {}
    found = decode_trace_file(content, node.header.directory_id, count)
    findings += [Finding(FindingKind.PROMISE, path, note) for note in found.notes]
    findings += [
        Finding(
            FindingKind.PROMISE, path, f"partition {number}: no trace checks out; it will not vote"
        )
        for number in expected
        if number not in found.known
    ]
    return {number: found.known[number][1] for number in expected if number in found.known}


def _header_problems(control: Control) -> list[str]:
    problems = []
    if control.version != FORMAT_VERSION:
        problems.append(f"format version {control.version}; this release knows {FORMAT_VERSION}")
    expected = CONTROL_HEADER.size + PARTITION_BYTES * control.partition_count
    if len(control.content) != expected:
        problems.append(
            f"{len(control.content)} bytes; {control.partition_count} partitions take {expected}"
        )
    if any(CONTROL_HEADER.unpack_from(control.content)[4]):
        problems.append("reserved bytes that are not zero")
    return problems


def _read_node_file(
    disk: Disk, directory: str, control: Control, findings: list[Finding]
) -> NodeFileContent | None:
    """Return the content of the node file, None if there is none to read; add its faults to
    `findings`."""
    path = f"{directory}/{NODE_FILE_NAME}"
    try:
        size = file_size(disk, path)
        # A damaged count must not decide how much is read.
        counts = [
            count
            for count in (len(control.entries), control.partition_count)
            if 0 <= count <= PARTITIONS_MAX
        ]
        fitting = [count for count in counts if node_file_bytes(count) == size]
        count = min(fitting or counts)
        content = read_file(disk, path, bytes_max=node_file_bytes(count) + 1)
    except FileNotFoundError:
        text = (
            "missing: only the original has written here, or it was lost; the next start makes it"
        )
        findings.append(Finding(FindingKind.NOTE, path, text))
        return None
    try:
        node = decode_node_file(
            content, cluster_key=control.cluster_key, partition_count=count, place=path
        )
    except WaltzError as error:
        findings.append(Finding(FindingKind.PROMISE, path, str(error)))
        return None
    findings += [Finding(FindingKind.PROMISE, path, note) for note in node.notes]
    findings += [
        Finding(FindingKind.PROMISE, path, str(slot))
        for slot in node.slots.values()
        if isinstance(slot, CorruptionError)
    ]
    header = control.content[: CONTROL_HEADER.size]
    findings += [
        Finding(FindingKind.HEADER, control.path, note)
        for note in header_notes(header, node.header)
    ]
    return node


def _judge(
    control: Control, node: NodeFileContent | None, count: int
) -> dict[PartitionId, Judgement]:
    slots = {} if node is None else node.slots

    def struct_copy(partition_id: PartitionId) -> bytes:
        slot = slots.get(partition_id)
        return slot.struct_copy if isinstance(slot, Slot) else NO_COPY

    return judge_partitions(control.content, count, struct_copy, slots)


def _promise_problems(partition_id: PartitionId, judgement: Judgement) -> list[str]:
    if judgement.note is not None:
        return [judgement.note]
    if isinstance(judgement.entry, CorruptionError):
        return [str(judgement.entry)]
    info = judgement.entry.info
    problems = []
    if info.flags & ~KNOWN_FLAGS:
        problems.append(f"partition {partition_id}: unknown flags {info.flags & ~KNOWN_FLAGS}")
    if info.session_id < NO_SESSION or info.local_low_water_mark < NOTHING:
        problems.append(f"partition {partition_id}: session or mark below {NOTHING}")
    return problems
