"""The events and effects of one partition of a client, `ClientPartition`, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from waltz.client.appends.submission import Submission
from waltz.client.bulk import Bulk
from waltz.client.partitions.outcome_questions import OutcomeKnown, OutcomeRefused
from waltz.errors import LocalProtocolError, PermissionDeniedError
from waltz.types import ClientId, Generation, RequestId, TransactionId
from waltz.wire.client_protocol import MountState
from waltz.wire.fed import FedRuns
from waltz.wire.message import Message

# Events


@dataclass(frozen=True, slots=True)
class GenerationRaised:
    """The cluster has moved the partition; a lower generation than known is ignored."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The partition's server is connected; the sequence number grows from stream to stream.

    `knows_batches`: the server tells the outcome of each append, and can be asked for it. A server
    that does not know batches leaves most refusals unsaid.
    """

    connection_sequence: int
    knows_batches: bool = False


@dataclass(frozen=True, slots=True)
class StreamLost:
    """That stream has ended, or the partition has another server."""

    connection_sequence: int


@dataclass(frozen=True, slots=True)
class HighWaterMarkLoaded:
    """The application has said up to where it has applied the partition."""

    high_water_mark: TransactionId


@dataclass(frozen=True, slots=True)
class Submitted:
    """Contexts that were executed, in the order they are to be sent."""

    submissions: Sequence[Submission]


@dataclass(frozen=True, slots=True)
class Received:
    """Messages of a server for this partition, in order."""

    connection_sequence: int
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class Applied:
    """The batch in hand was applied up to `last_transaction_id`, `NOTHING` for none of it.

    `retry_seconds` is None if that was all of it, else when the rest is to be tried again.
    """

    last_transaction_id: TransactionId
    retry_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """The link could not carry an append: the server speaks a version without its locks."""

    request_id: RequestId
    error: LocalProtocolError


@dataclass(frozen=True, slots=True)
class FlushWanted:
    """Somebody waits for verdicts, or for room."""


@dataclass(frozen=True, slots=True)
class OutcomeWanted:
    """Somebody wants to know what became of an append, which is not at `after` or before."""

    request_id: RequestId
    after: TransactionId


@dataclass(frozen=True, slots=True)
class AppendsHeld:
    """The client is about to use another client ID: nothing is to be sent until all that was sent
    is decided."""


@dataclass(frozen=True, slots=True)
class ClientIdRenewed:
    """Everything is sent under this client ID from now on, on streams that are opened later."""

    client_id: ClientId


@dataclass(frozen=True, slots=True)
class PartitionClosed:
    """The client closes."""


Event: TypeAlias = (
    GenerationRaised
    | StreamOpened
    | StreamLost
    | HighWaterMarkLoaded
    | Submitted
    | Received
    | Applied
    | AppendRefused
    | FlushWanted
    | OutcomeWanted
    | AppendsHeld
    | ClientIdRenewed
    | PartitionClosed
)

# Effects


@dataclass(frozen=True, slots=True)
class LoadHighWaterMark:
    """Ask the application up to where it has applied the partition."""


@dataclass(frozen=True, slots=True)
class SendMessages:
    """Send on the stream with this number, in order."""

    connection_sequence: int
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class ApplyTransactions:
    """Hand over the next transactions; `own` are this client's among them, by ID, and others may be
    rows of `bulks`.

    Nothing more is handed over until the answer, `Applied`.
    """

    transactions: FedRuns
    own: dict[TransactionId, Submission]
    bulks: Sequence[Bulk] = ()


@dataclass(frozen=True, slots=True)
class BulkApplied:
    """Each row of a submission has an outcome, and what is in the log of them has been applied."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class RetrySubmissions:
    """Execute these again: they are not in the log and will not be."""

    submissions: Sequence[Submission]


@dataclass(frozen=True, slots=True)
class FailSubmission:
    """Give this one up: it was not sent and never can be, or the server denies it."""

    submission: Submission
    error: LocalProtocolError | PermissionDeniedError


@dataclass(frozen=True, slots=True)
class ReleaseRoom:
    """`count` submissions are in the log; others may take their place (PM-42)."""

    count: int


@dataclass(frozen=True, slots=True)
class ClientIdRunsOut:
    """The sequence numbers of the client ID will not last much longer."""


@dataclass(frozen=True, slots=True)
class AppendsSettled:
    """Appends are held, and nothing that was sent is undecided."""


@dataclass(frozen=True, slots=True)
class AheadSuspected:
    """A server says that the log ends before this mark; it is asked again before it is believed."""

    high_water_mark: TransactionId


@dataclass(frozen=True, slots=True)
class MountDenied:
    """The server's policy denies the partition to this client; the mount is asked for again later,
    and on the next stream."""

    error: PermissionDeniedError


@dataclass(frozen=True, slots=True)
class MountChanged:
    """Whether submits may go on. CLIENT_AHEAD is for good (CI-12); None is not mounted."""

    state: MountState | None


Effect: TypeAlias = (
    LoadHighWaterMark
    | SendMessages
    | ApplyTransactions
    | BulkApplied
    | RetrySubmissions
    | FailSubmission
    | ReleaseRoom
    | ClientIdRunsOut
    | AppendsSettled
    | AheadSuspected
    | MountDenied
    | MountChanged
    | OutcomeKnown
    | OutcomeRefused
)
