"""The log that the checkpoint of a stream belongs to, in a file next to Spark's own.

The cluster keeps how far a sink is, and Spark's checkpoint which batches are over. With another
cluster the sink would write the batches that follow, and none of those before. After a restore of
the log nobody can say which rows of the batches before are in the log, so that a checkpoint is good
for one history only.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from waltz.errors import ConfigurationError, HistoryChangedError
from waltz.spark.codes import CLUSTER_CHANGED, HISTORY_CHANGED, INVALID_CHECKPOINT

FILE_NAME: Final = "waltz-sink.json"
SPARKS_METADATA: Final = "metadata"
"""A file that Spark writes into a checkpoint before the first batch."""

FORMAT: Final = 1
RESTORED_FORMAT: Final = 2
"""The format with a history; earlier releases refuse it. A log that was never restored has format
1."""
FILE_BYTES_MAX: Final = 4096

REMEDY: Final = (
    "Nothing was written. Write to the previous cluster, or use another checkpoint, with which the"
    " stream starts anew"
)


RESTORED_REMEDY: Final = (
    "Nothing was written. Rows of the batches that are over may be missing in the log: compare,"
    " append what is missing, and use another checkpoint, with which the stream starts anew"
)


@dataclass(frozen=True, slots=True)
class WrittenLog:
    """The log that a sink writes to: the key of its cluster, and the history of what it has now;
    None: the first one."""

    cluster_key: UUID
    history: UUID | None = None

    def __str__(self) -> str:
        if self.history is None:
            return f"the first history of cluster {self.cluster_key}"
        return f"history {self.history} of cluster {self.cluster_key}"


@dataclass(frozen=True, slots=True)
class SinkCheckpoint:
    """The directory of a checkpoint, on a file system of the driver's machine."""

    directory: Path

    @classmethod
    def at(cls, location: str) -> SinkCheckpoint | None:
        """Return the checkpoint that Spark's option `checkpointLocation` names; None if it is not
        on a file system that Python can open: an object store, for example."""
        scheme, colon, rest = location.partition(":")
        if not colon or "/" in scheme:
            rest = location
        elif scheme.lower() != "file":
            return None
        elif rest.startswith("//"):
            rest = "/" + rest[2:].partition("/")[2]
        directory = Path(rest)
        # A path without a scheme may be one of another file system, by Hadoop's configuration.
        return cls(directory) if (directory / SPARKS_METADATA).exists() else None

    def bind(self, log: WrittenLog, address: str) -> None:
        """Note that the checkpoint is of this log, to which `address` leads. One without a note, of
        an earlier release or a new one, is taken for this log's.

        Raises HistoryChangedError: it is of another cluster, or of another history of its log;
        ConfigurationError: the note cannot be read or written.
        """
        try:
            found = self._read()
            if found is None:
                self._write(log)
                found = self._read()
        except OSError as error:
            raise ConfigurationError(
                f"{INVALID_CHECKPOINT} cannot note in {self.directory} which cluster the checkpoint"
                f" is of: {error.strerror}"
            ) from error
        made = f"the checkpoint {self.directory} was made while"
        if found is None or found.cluster_key != log.cluster_key:
            raise HistoryChangedError(
                f"{CLUSTER_CHANGED} {made} cluster {found and found.cluster_key} was written to,"
                f" and {address} leads to cluster {log.cluster_key}. {REMEDY}"
            )
        if found != log:
            raise HistoryChangedError(
                f"{HISTORY_CHANGED} {made} {found} was written to. The log was restored from an"
                f" archive since: {address} leads to {log}. {RESTORED_REMEDY}"
            )

    def _read(self) -> WrittenLog | None:
        path = self.directory / FILE_NAME
        try:
            with path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        try:
            value = json.loads(data)
            if value["format"] not in (FORMAT, RESTORED_FORMAT):
                raise ValueError(value["format"])
            restored = value["format"] == RESTORED_FORMAT
            history = UUID(value["history"]) if restored else None
            return WrittenLog(UUID(value["cluster"]), history)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ConfigurationError(
                f"{INVALID_CHECKPOINT} {path} is {data!r:.200}; expected format {FORMAT} or"
                f" {RESTORED_FORMAT} and a cluster's key. The file names the checkpoint's cluster:"
                " restore the file"
            ) from None

    def _write(self, log: WrittenLog) -> None:
        """Write the file unless it exists: it is never replaced, so of two writers one comes too
        late."""
        value = {"format": FORMAT, "cluster": str(log.cluster_key)}
        if log.history is not None:
            value |= {"format": RESTORED_FORMAT, "history": str(log.history)}
        with tempfile.NamedTemporaryFile(dir=self.directory, prefix=f".{FILE_NAME}.") as file:
            file.write(json.dumps(value).encode())
            file.flush()
            os.fsync(file.fileno())
            try:
                os.link(file.name, self.directory / FILE_NAME)
            except FileExistsError:
                return
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def expect_log(found: WrittenLog, expected: WrittenLog, address: str) -> None:
    """Raise HistoryChangedError if `address` leads to another log than the one that a write began
    with."""
    expect_cluster(found.cluster_key, expected.cluster_key, address)
    if found != expected:
        raise HistoryChangedError(
            f"{HISTORY_CHANGED} the write began with {expected}. The log was restored from an"
            f" archive since: {address} leads to {found}. {RESTORED_REMEDY}"
        )


def expect_cluster(found: UUID, expected: UUID, address: str) -> None:
    """Raise HistoryChangedError if `address` leads to another cluster than the expected one."""
    if found != expected:
        raise HistoryChangedError(
            f"{CLUSTER_CHANGED} {address} leads to cluster {found}; expected cluster {expected},"
            " which the option clusterKey or the plan of the write names. Nothing was written."
            " Write to the previous cluster, or give another clusterKey and another checkpoint"
        )
