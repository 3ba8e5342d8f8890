"""The whole error tree on one screen.

    WaltzError
      ProtocolError
        RemoteProtocolError      a peer sent bytes or a message that its protocol does not allow
        LocalProtocolError       our own code asked for what the protocol or the API forbids
        HandshakeRefusedError    a server does not take this client, and says why
      FencedError                a newer session or generation took over; what was sent: unknown
      UnavailableError           not now: ask again later
        ConnectionFailedError    nobody answered at that address; nothing was sent
        ConnectionLostError      the connection ended; what was sent on it: unknown
          ConnectionUnknownError the server does not know the logical connection any more
        CoordinatorLostError     the coordinator cannot be reached; what was asked: unknown
        PartitionNotReadyError   the partition has no usable store session or server yet
        OperationTimeoutError    the caller's time ran out; what was sent: unknown
        PartitionBlockedError    the application cannot apply the partition's next transaction
        UnreadableError          no replica that should hold a transaction can give it
        ArchiveUnreachableError  the archive's directory or bucket does not answer; a write: unknown
        PostponedError           a callback asks to be called again later; nothing is wrong
      StorageError               a replica's disk
        SegmentFailedError       a write or sync failed; the writer stays closed until reopened
        CorruptionError          bytes at or below a trusted mark do not check out
          ArchiveDamagedError    an object of the archive is lost or is not what was archived
        RemoteStorageError       a storage node answered with a failure; its text is in the message
      CoordinationError          the coordinator refused a request
        NoNodeError  NodeExistsError  VersionConflictError
      ConfigurationError         refuse to start; the message names the setting and the remedy
        DirectoryInUseError      another process holds the storage directory
        ForeignDirectoryError    the directory belongs to another cluster or storage node
      NotFoundError              no such transaction or partition
        ChangesMissingError      the changes of a table after a place are not kept: read it anew
      PermissionDeniedError      the server's policy does not allow this to this client
        PermissionLostError      the same; what was sent before: unknown
      PartitionInactiveError     this client has not activated the partition
      HistoryChangedError        the application has applied another log than this cluster's
        ClientAheadError         the application has applied more than the log holds
      AttestationError           a signature, proof or tree does not hold, or is not there
      ClusterChangedError        another cluster answers at the known addresses; this client is done
      ClientClosedError          the client was closed before the outcome was known
        AlreadyClosedError       the call came after that; nothing was sent
      SubmitCancelledError       the submit was cancelled before anything was sent

`retryable` says whether asking again may help. `may_be_written` says whether an append that ended
with this error may nevertheless be in the log: only the feed knows. A refused lock is a result, not
an error.
"""

from __future__ import annotations

from typing import Any, ClassVar


class WaltzError(Exception):
    """Any error of Waltz; its text ends with facts: expected, found, where."""

    retryable: ClassVar[bool] = False
    may_be_written: ClassVar[bool] = False
    earlier: tuple[WaltzError, ...] = ()
    """The errors of earlier attempts, if there were any."""


class ProtocolError(WaltzError): ...


class RemoteProtocolError(ProtocolError):
    """A peer sent what its protocol does not allow; the connection is beyond repair."""

    may_be_written = True


class LocalProtocolError(ProtocolError):
    """Our own side asked for something that the protocol or the API forbids; nothing was sent."""


class HandshakeRefusedError(ProtocolError):
    """A server refuses this client, or shares no protocol version with it; the text names both."""


class FencedError(WaltzError):
    """A newer session or generation has taken over. Fenced does not mean failed: the outcome is
    unknown."""

    retryable = True
    may_be_written = True


class UnavailableError(WaltzError):
    retryable = True


class ConnectionFailedError(UnavailableError): ...


class ConnectionLostError(UnavailableError):
    may_be_written = True


class ConnectionUnknownError(ConnectionLostError):
    """The logical connection cannot be resumed; the fate of what was sent on it is unknown."""


class CoordinatorLostError(UnavailableError):
    may_be_written = True


class PartitionNotReadyError(UnavailableError): ...


class OperationTimeoutError(UnavailableError):
    """The time of a call is up. If an append was sent, `outcome(request_id, executed_at)` of this
    client or another one says later whether the append is in the log."""

    may_be_written = True
    request_id: Any = None
    """The `RequestId` of the append; None: nothing was sent, or it was not a single append."""
    executed_at: Any = None
    """A `TransactionId`; the append comes after it in the log, or is not in the log."""


class CutNotMadeError(UnavailableError):
    """No cut through all partitions was made; none of the attempts has had a lasting effect."""


class PartitionBlockedError(UnavailableError):
    """The application cannot apply the next transaction of a partition, so nothing after it is
    applied either. The text names the transaction and says how to continue without it."""

    may_be_written = True


class UnreadableError(UnavailableError):
    """Every replica that should hold a transaction has answered that it cannot return it. The text
    names the transaction and each replica's answer. Asking again helps once one of these replicas
    is repaired, or once a replica that has the transaction comes back."""


class ArchiveUnreachableError(UnavailableError):
    """A directory or bucket refused or did not answer, after repeated attempts. Whether a write
    took effect is unknown. The text says what was asked, and what to look at."""


class PostponedError(UnavailableError):
    """Raised by a callback to be called again after `delay_seconds` with what is not applied yet.

    `applied_through` is the last applied transaction among those handed over, no matter which
    process applied it.
    """

    def __init__(
        self, reason: str, delay_seconds: float, applied_through: int | None = None
    ) -> None:
        super().__init__(reason)
        self.delay_seconds = delay_seconds
        self.applied_through = applied_through


class StorageError(WaltzError): ...


class SegmentFailedError(StorageError):
    may_be_written = True


class CorruptionError(StorageError): ...


class ArchiveDamagedError(CorruptionError):
    """An object of the archive is lost, or differs from what was archived. Of `partition_id` the
    transactions `first` to `end` - 1 are concerned; None: all, a manifest is damaged. `waltz
    archive repair` writes lost objects anew while the log has their transactions."""

    def __init__(
        self,
        reason: str,
        path: str,
        partition_id: int | None = None,
        first: int | None = None,
        end: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.path = path
        self.partition_id = partition_id
        self.first = first
        self.end = end


class RemoteStorageError(StorageError):
    """A storage node answered with a failure; the message carries its text.

    A node may fail in the middle of an append, so the fate of what was sent is unknown.
    """

    retryable = True
    may_be_written = True


class CoordinationError(WaltzError): ...


class NoNodeError(CoordinationError): ...


class NodeExistsError(CoordinationError): ...


class VersionConflictError(CoordinationError):
    retryable = True


class ConfigurationError(WaltzError): ...


class DirectoryInUseError(ConfigurationError): ...


class ForeignDirectoryError(ConfigurationError): ...


class NotFoundError(WaltzError): ...


class ChangesMissingError(NotFoundError):
    """The changes of a derived table after a position cannot be told: they were tidied away, the
    table was made anew, or it never was there. The text says which; read the table anew."""


class PermissionDeniedError(WaltzError):
    """The policy of the server does not let this process do what it has asked for; nothing of the
    request was served or stored. `principal` is the name by which the policy knows this process,
    `verb` what it lacks, `partition` the partition for which it lacks that; None: for no single
    one. The text has the policy's reason."""

    def __init__(
        self, text: str, principal: str = "", verb: str = "", partition: int | None = None
    ) -> None:
        super().__init__(text)
        self.principal = principal
        self.verb = verb
        self.partition = partition


class PermissionLostError(PermissionDeniedError):
    """The policy denies a partition to this client before the outcome of an append is known, or
    denies some rows of `append_many`: what was sent before may be in the log."""

    may_be_written = True


class IdempotencyKeyReusedError(WaltzError):
    """A transaction with the same idempotency key and another content is in the log."""


class PartitionInactiveError(WaltzError): ...


class PartitionLeftError(PartitionInactiveError):
    """The client has left the partition before the outcome was known."""

    may_be_written = True


class HistoryChangedError(WaltzError):
    """The application's marks belong to another log than the one that the client follows; nothing
    was applied. The text names both logs and the remedy."""

    may_be_written = True


class ClientAheadError(HistoryChangedError):
    """The application has applied more than the log holds: one of the two was set back to an older
    state."""


class AttestationError(WaltzError):
    """A signature, a proof or a tree of attested transactions does not hold, or there is none; the
    text says which part of it."""


class ClusterChangedError(WaltzError):
    may_be_written = True


class ClientClosedError(WaltzError):
    may_be_written = True


class AlreadyClosedError(ClientClosedError):
    """The client, or the reader, was closed before this call; nothing was sent."""

    may_be_written = False

    def __init__(self) -> None:
        super().__init__("it was closed before this call; nothing was sent")


class SubmitCancelledError(WaltzError):
    """The submitting task was cancelled before anything was sent: the transaction is not in the
    log."""
