"""The requests that a partition's flags allow. Source: Waltz Storage, "Administration"; CX-07.

    needs     requests
    writes    append, truncate, set low-water mark, repair: they change the replica
    reads     record, record header, and their lists: they return records
    either    last session info, max transaction ID, replica state: the questions of a session;
              accept damage: it changes nothing that is kept; note clients: nothing rests on it

A recovering server asks the last kind first. So a replica that takes writes but no reads is a full
member of a session, but nothing is read or copied from it; a replica that takes reads but no writes
votes with what it holds and then stays out of the session. With both flags set, or both cleared,
everything or nothing is allowed; the Java original knows only these two cases.

Offline recovery, in which an administrator repairs a replica by hand, is allowed only while both
flags are cleared.
"""

from __future__ import annotations

from waltz.errors import UnavailableError
from waltz.storage.directory.control_struct import PartitionInfo
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    RecordHeaderListRequest,
    RecordHeaderRequest,
    RecordListRequest,
    RecordRequest,
    RepairRequest,
    SetLowWaterMarkRequest,
    StorageMessage,
    TruncateRequest,
)

WRITES = AppendRecordsRequest | TruncateRequest | SetLowWaterMarkRequest | RepairRequest
READS = RecordRequest | RecordHeaderRequest | RecordListRequest | RecordHeaderListRequest


def is_offline(request: StorageMessage) -> bool:
    """Whether `request` comes from the offline recovery tool; a request without the flag does
    not."""
    return bool(getattr(request, "offline", False))


def check_access(info: PartitionInfo, request: StorageMessage, *, offline: bool) -> None:
    """Raises UnavailableError: the flags forbid `request`; `offline` is the result of `is_offline`
    for it."""
    readable, writable = info.is_readable, info.is_writable
    partition_id = request.partition_id
    if offline:
        if readable or writable:
            raise UnavailableError(
                f"offline recovery of partition {partition_id} is disabled while it is available"
            )
    elif not (readable or writable):
        raise UnavailableError(f"read and write of partition {partition_id} are disabled")
    elif not writable and isinstance(request, WRITES):
        raise UnavailableError(f"write of partition {partition_id} is disabled")
    elif not readable and isinstance(request, READS):
        raise UnavailableError(f"read of partition {partition_id} is disabled")
