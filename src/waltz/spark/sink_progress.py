"""The notes through which attempts of a task know of each other: their clients, and the log before
them.

The cluster keeps one note per sink and Spark task. Every attempt of a task adds its client before
it appends anything, so a reader that finds a transaction in the log can tell whether an attempt of
the same task wrote it. Pure: no connection.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from waltz.errors import ConfigurationError, CorruptionError, VersionConflictError
from waltz.spark.codes import INVALID_NOTE, LATER_BATCH
from waltz.types import ClientId, PartitionId, TransactionId

FORMAT: Final = 1
WRITE_ID_CHARACTERS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """One task of one batch of one sink.

    write_id  the ID of the streaming query, or of the write.
    batch     the number of the batch; it begins after all earlier ones of the sink are in the log.
    task      Spark's number of the task: the rows of the same number are the same each time.
    run       differs from start to start of the query or the write.
    is_once   whether the write has no name. Its notes are deleted when it ends, so that an attempt
              without the note of the tasks, which the driver has made, is one of a write that is
              over.
    """

    write_id: str
    batch: int
    task: int
    run: str
    is_once: bool = False

    @property
    def note(self) -> str:
        """The name of the task's note."""
        return f"spark-{quote(self.write_id, safe='')}-{self.task}"

    @property
    def tasks_note(self) -> str:
        """The name of the note that has the numbers of all tasks of the batch."""
        return f"spark-{quote(self.write_id, safe='')}-tasks"

    def __str__(self) -> str:
        return f"task {self.task} of batch {self.batch} of {self.write_id}"


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The note of a task.

    marks    the high-water marks before the first attempt of this batch appended anything.
    clients  the client IDs of all attempts of this batch.
    refusal  the run in which a lock was refused, and the text of the error.
    """

    batch: int
    marks: Mapping[PartitionId, TransactionId]
    clients: tuple[ClientId, ...]
    refusal: tuple[str, str] | None = None

    def encode(self) -> bytes:
        return json.dumps(
            {
                "format": FORMAT,
                "batch": self.batch,
                "marks": {str(each): mark for each, mark in sorted(self.marks.items())},
                "clients": self.clients,
                "refusal": self.refusal,
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> TaskProgress:
        """Return the progress of a note. Raises CorruptionError: not such a note."""
        try:
            found = json.loads(data)
            if found["format"] != FORMAT:
                raise ValueError(found["format"])
            refusal = found["refusal"]
            return cls(
                int(found["batch"]),
                {
                    PartitionId(int(each)): TransactionId(int(mark))
                    for each, mark in found["marks"].items()
                },
                tuple(ClientId(int(each)) for each in found["clients"]),
                None if refusal is None else (str(refusal[0]), str(refusal[1])),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise _no_note(data) from None


def join(
    data: bytes | None,
    identity: TaskIdentity,
    client_id: ClientId,
    marks: Mapping[PartitionId, TransactionId],
) -> bytes:
    """Return the note once this attempt has joined the batch; `marks` count for the first one.

    Raises as `current`; VersionConflictError: a lock was refused in this run.
    """
    found = current(data, identity)
    if found is None:
        return TaskProgress(identity.batch, marks, (client_id,)).encode()
    if found.refusal is not None:
        run, text = found.refusal
        if run == identity.run:
            raise VersionConflictError(text)
    return replace(found, clients=(*found.clients, client_id), refusal=None).encode()


def without_tasks(identity: TaskIdentity) -> bytes:
    """Return the note of a batch's tasks before the first one."""
    return _tasks_note(identity, ())


def with_task(data: bytes | None, identity: TaskIdentity) -> bytes:
    """Return the note of a batch's tasks with this one; an empty one for a write without a name
    that is over. Raises as `current`."""
    if identity.is_once and not data:
        return b""
    if data is not None:
        _check_not_restored(data, identity)
    batch, tasks = _tasks(data)
    if batch > identity.batch:
        raise _over(identity, batch)
    known = tasks if batch == identity.batch else frozenset()
    return _tasks_note(identity, {*known, identity.task})


def _tasks_note(identity: TaskIdentity, tasks: Iterable[int]) -> bytes:
    found = {"format": FORMAT, "batch": identity.batch, "tasks": sorted(tasks)}
    return json.dumps(found).encode()


def tasks_beyond(data: bytes | None, batch: int, count: int) -> list[int]:
    """Return the tasks that have written rows of the batch, but for the first `count`.

    Raises CorruptionError.
    """
    found, tasks = _tasks(data)
    return sorted(each for each in tasks if each >= count) if found == batch else []


def _tasks(data: bytes | None) -> tuple[int, frozenset[int]]:
    if data is None:
        return -1, frozenset()
    try:
        found = json.loads(data)
        if found["format"] != FORMAT:
            raise ValueError(found["format"])
        return int(found["batch"]), frozenset(int(each) for each in found["tasks"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _no_note(data) from None


def _no_note(data: bytes) -> CorruptionError:
    return CorruptionError(
        f"{INVALID_NOTE} the cluster's note about a sink is {data!r:.200}; expected format {FORMAT}"
    )


def _check_not_restored(data: bytes, identity: TaskIdentity) -> None:
    """Raise ConfigurationError if a restore from an archive has put this note in the place of the
    sink's: nobody knows any more which rows are in the log."""
    try:
        text = json.loads(data).get("restored")
    except (ValueError, AttributeError, RecursionError):
        return
    if isinstance(text, str):
        raise ConfigurationError(
            f"{LATER_BATCH} {identity}: {text}. Nothing was written. Compare the log with what the"
            " stream has read, append what is missing, and start the stream with another"
            " checkpoint; a batch write needs another writeId"
        )


def _over(identity: TaskIdentity, batch: int) -> ConfigurationError:
    return ConfigurationError(
        f"{LATER_BATCH} {identity}: batch {batch} has begun, so batch {identity.batch} is over:"
        " this attempt is an old one, or its checkpoint was set back"
    )


def ended(identity: TaskIdentity) -> ConfigurationError:
    """Return the error of an attempt whose write is over."""
    return ConfigurationError(
        f"{LATER_BATCH} {identity}: the write is over, so this attempt is an old one; it writes"
        " nothing more"
    )


def refused(data: bytes | None, identity: TaskIdentity, text: str) -> bytes:
    """Return the note once a lock was refused. Raises as `joined`."""
    return replace(joined(data, identity), refusal=(identity.run, text)).encode()


def joined(data: bytes | None, identity: TaskIdentity) -> TaskProgress:
    """Return the progress of this batch, which this attempt has joined. Raises as `current`;
    ConfigurationError: the note is gone, for the write is over."""
    found = current(data, identity)
    if found is None:
        raise ended(identity)
    return found


def current(data: bytes | None, identity: TaskIdentity) -> TaskProgress | None:
    """Return the progress of this batch; None if there is none yet.

    Raises ConfigurationError: a later batch has begun, so that this one is over; CorruptionError.
    """
    if data is None:
        return None
    _check_not_restored(data, identity)
    found = TaskProgress.decode(data)
    if found.batch > identity.batch:
        raise _over(identity, found.batch)
    return found if found.batch == identity.batch else None
