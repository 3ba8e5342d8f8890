"""The client at the other end of a connection, and which of its connections counts.

Owns the rules by which messages find their partition and by which a client's newer connection
replaces an older one. Knows nothing of sockets. Source: Client-Server Communication, "Mount
Request".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from waltz.errors import RemoteProtocolError
from waltz.record import empty_batch
from waltz.server.appends.appends import refused_all
from waltz.server.clients.mounted_clients import MountFacts, ToldMark
from waltz.server.feeding.backlog import request_bytes
from waltz.types import (
    NOTHING,
    SEQUENCE_NUMBER_MAX,
    CertificateNames,
    ClientId,
    Generation,
    PartitionId,
    TransactionId,
)
from waltz.wire.batch_protocol import (
    AppendBatch,
    HeaderBlock,
    HeadersRequest,
    Outcome,
    OutcomeRequest,
    OutcomeResponse,
    ReadRequest,
    Reason,
    RecordBlock,
)
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    ClientMessage,
    HighWaterMarkRequest,
    MountRequest,
    MountResponse,
    MountState,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz.wire.header_columns import no_headers
from waltz.wire.message import Audience, Message

MOUNTS_GONE_MAX: Final = 1_000
"""Clients that a partition remembers after their connection has ended: messages of that connection
do not count a second time, from any connection."""


PARTITION_NOT_READY = "partition not ready"


class Proof(NamedTuple):
    """The marks by which two clients with the same client ID are told apart.

    `token` is what the client showed in its handshake, empty for a client without a token or
    without a handshake; `certificate` has the names in its certificate, None without one.
    """

    token: bytes = b""
    certificate: CertificateNames | None = None
    host: str = ""

    def is_same_client(self, other: Proof) -> bool:
        """Whether both are of one client: certain with tokens, without them likely."""
        return self.token == other.token if self.token or other.token else self == other


NO_PROOF: Final = Proof()


class ClientPeer(NamedTuple):
    """A connection as its partitions see it.

    `client_id` is that of the connection's first message, `sequence` that of its first mount.
    """

    connection_id: int
    client_id: ClientId
    sequence: int | None
    proof: Proof = NO_PROOF
    has_lasting_sequence: bool = True
    """Whether the sequence number names one connection of the client for good: that of a client of
    the original may come again."""


@dataclass(frozen=True, slots=True)
class MessagesReceived:
    """Messages of one connection for one partition, in the order in which they came."""

    peer: ClientPeer
    messages: tuple[ClientMessage, ...]


class Sorted(NamedTuple):
    """The messages of one read by receiver; partitions in order of the first message for them."""

    for_partitions: tuple[tuple[PartitionId, MessagesReceived, int], ...]
    """With what the messages take in bytes."""
    for_server: tuple[Message, ...]


def _heard_by(audience: Audience) -> frozenset[type[Message]]:
    return frozenset(kind for kind in CLIENT_CODEC.messages if kind.AUDIENCE is audience)


FOR_PARTITION: Final = _heard_by(Audience.PARTITION)
FOR_SERVER: Final = _heard_by(Audience.SERVER)
ANONYMOUS: Final = _heard_by(Audience.STRANGERS_SERVER)
"""Questions to the server, from clients that may have no ID yet."""

OVERTAKING: Final = frozenset({TransactionDataRequest, HighWaterMarkRequest})
"""Questions that the log answers, whatever is undecided, at the cost of a look."""

OVERTAKING_QUESTIONS_MAX: Final = 8
"""At most this many questions of one read overtake in a partition. A client with more of them under
way does not wait for each."""


class Sorter:
    """Sorts what one connection sends by partition, and learns who sends it."""

    def __init__(
        self, connection_id: int, proof: Proof = NO_PROOF, *, has_lasting_sequence: bool = True
    ) -> None:
        self._connection_id = connection_id
        self._proof = proof
        self._has_lasting_sequence = has_lasting_sequence
        self._client_id: ClientId | None = None
        self._sequence: int | None = None
        self._peer: ClientPeer | None = None
        """As the partitions saw it last."""

    @property
    def client_id(self) -> ClientId | None:
        """The client that the connection's first message was from; None before it."""
        return self._client_id

    @property
    def has_mounted(self) -> bool:
        """Whether the connection has asked for a mount yet."""
        return self._sequence is not None

    def sort(self, messages: Iterable[Message]) -> Sorted:
        """Return what each partition and the server itself are to hear.

        Raises RemoteProtocolError: a message that only servers send, or appends whose request IDs
        cannot be theirs.
        """
        sorted_messages: dict[PartitionId, list[ClientMessage]] = {}
        for_server: list[Message] = []
        for message in messages:
            kind = type(message)
            if kind not in FOR_PARTITION:
                if kind in ANONYMOUS:
                    for_server.append(message)
                    continue
                if kind not in FOR_SERVER:
                    text = f"{kind.__name__} arrived from a client; expected only from servers"
                    raise RemoteProtocolError(text)
            assert isinstance(message, ClientMessage)
            if self._client_id is None:
                self._client_id = message.request_id.client_id
            if self._sequence is None and isinstance(message, MountRequest):
                self._sequence = message.connection_sequence
            if kind in FOR_SERVER:
                for_server.append(message)
                continue
            if kind is AppendBatch:
                assert isinstance(message, AppendBatch)
                _check_request_ids(message, self._client_id)
            partition_id = message.request_id.partition_id
            if partition_id in sorted_messages:
                sorted_messages[partition_id].append(message)
            else:
                sorted_messages[partition_id] = [message]
        if self._client_id is None:
            return Sorted((), tuple(for_server))
        peer = self._peer
        if peer is None or peer.sequence != self._sequence:
            self._peer = peer = ClientPeer(
                self._connection_id,
                self._client_id,
                self._sequence,
                self._proof,
                self._has_lasting_sequence,
            )
        for_partitions: list[tuple[PartitionId, MessagesReceived, int]] = []
        for partition_id, for_partition in sorted_messages.items():
            byte_count = sum(map(request_bytes, for_partition))
            received = MessagesReceived(peer, tuple(for_partition))
            for_partitions.append((partition_id, received, byte_count))
        return Sorted(tuple(for_partitions), tuple(for_server))


def _check_request_ids(message: AppendBatch, client_id: ClientId) -> None:
    """Raises RemoteProtocolError: the log would name another client, which would take the
    transaction for its own; or a sequence number would be one that 32 bits do not hold.

    Clients of the original number each append, and continue with -2^31: a batch that was joined
    from their appends ends before, and no number comes again before 2^32 appends.
    """
    request_id = message.request_id
    if request_id.client_id != client_id:
        raise RemoteProtocolError(
            f"an append of client {request_id.client_id} arrived on a connection of client"
            f" {client_id}"
        )
    last = request_id.sequence_number + len(message.appends) - 1
    if last > SEQUENCE_NUMBER_MAX:
        raise RemoteProtocolError(
            f"appends with sequence numbers {request_id.sequence_number} to {last}; expected at"
            f" most {SEQUENCE_NUMBER_MAX}: a client has to take another client ID before that"
            " number"
        )


def may_overtake(received: MessagesReceived) -> bool:
    """Whether `received` is a question or two that the log answers, and nothing else.

    A client of the original fetches body after body, each by a call. Behind the batches of
    others each call would take as long as these do, and the client would never catch up.
    """
    messages = received.messages
    return len(messages) <= OVERTAKING_QUESTIONS_MAX and OVERTAKING.issuperset(map(type, messages))


def answer_without_partition(message: ClientMessage) -> ClientMessage | None:
    """Return what a server says for a partition it does not have; most gets no answer."""
    match message:
        case MountRequest():
            return MountResponse(message.request_id, MountState.NOT_READY)
        case OutcomeRequest():
            return OutcomeResponse(message.request_id, Outcome.UNDECIDED, NOTHING)
        case ReadRequest(request_id, first):
            return RecordBlock(request_id, NOTHING, PARTITION_NOT_READY, empty_batch(first))
        case HeadersRequest(request_id, first):
            return HeaderBlock(request_id, NOTHING, PARTITION_NOT_READY, no_headers(first))
        case AppendBatch():
            return refused_all(message, Reason.NOT_HERE)
        case TransactionDataRequest():
            return TransactionDataResponse(
                message.request_id, message.transaction_id, None, 0, PARTITION_NOT_READY
            )
        case _:
            return None


class _Registration(NamedTuple):
    peer: ClientPeer
    sequence: int
    generation: Generation


class Mounts:
    """The connection that speaks for each client of one partition."""

    def __init__(self, *, gone_max: int = MOUNTS_GONE_MAX) -> None:
        self._registrations: dict[ClientId, _Registration] = {}
        self._gone: dict[ClientId, _Registration] = {}
        """The last one of each client that has none, the one that has been gone longest first."""
        self._gone_max = gone_max
        self._sampled: dict[int, ToldMark] = {}
        """The mark of the last append of each connection that has sent one."""

    def __len__(self) -> int:
        return len(self._registrations)

    def mount(self, peer: ClientPeer, generation: Generation) -> int | None:
        """Let `peer` speak for its client unless an older mount outranks it, or is that of another
        client, which has the client ID for as long as its connection lives.

        A higher generation wins, then a higher connection sequence; the same two mount again.
        Returns the connection that is replaced, if there is one.
        """
        assert peer.sequence is not None
        known = self._registrations.get(peer.client_id)
        rank = (generation, peer.sequence)
        if known is not None and (
            rank < (known.generation, known.sequence)
            or not peer.proof.is_same_client(known.peer.proof)
        ):
            return None
        self._registrations[peer.client_id] = _Registration(peer, peer.sequence, generation)
        self._gone.pop(peer.client_id, None)
        if known is None or known.peer.connection_id == peer.connection_id:
            return None
        return known.peer.connection_id

    def is_valid(self, peer: ClientPeer) -> bool:
        """Whether the messages of `peer` count: the last mount of its client came from it."""
        return self.speaks(peer.connection_id, peer.client_id)

    def is_repeated(self, peer: ClientPeer) -> bool:
        """Whether `peer` repeats what another connection has sent.

        A lasting sequence number names one connection of a client. A second connection with the
        number is that of somebody who has seen the first one's messages and replays them. Another
        client with the same client ID has sequence numbers of its own.
        """
        last = self._registrations.get(peer.client_id) or self._gone.get(peer.client_id)
        if last is None or peer.sequence is None or last.peer.connection_id == peer.connection_id:
            return False
        if not (last.peer.has_lasting_sequence and peer.has_lasting_sequence):
            return False
        if not peer.proof.is_same_client(last.peer.proof):
            return False
        is_older = peer.client_id in self._gone and peer.sequence < last.sequence
        return is_older or peer.sequence == last.sequence

    def has(self, client_id: ClientId) -> bool:
        """Whether a connection speaks for the client."""
        return client_id in self._registrations

    def note_appends(self, connection_id: int, last: AppendBatch, now: float) -> None:
        """Take note of appends of a connection that speaks for its client; `last` are the last of
        them."""
        mark = TransactionId(int(last.appends.client_high_water_marks[-1]))
        self._sampled[connection_id] = ToldMark(mark, now)

    def facts(self, sent_of: Callable[[int], TransactionId | None]) -> list[MountFacts]:
        """Return what operators are told of the mounts; `sent_of` returns the last transaction that
        a connection was sent."""
        peers = (known.peer for known in self._registrations.values())
        return [
            MountFacts(
                peer.connection_id,
                peer.client_id,
                sent_of(peer.connection_id),
                self._sampled.get(peer.connection_id),
            )
            for peer in peers
        ]

    def speaks(self, connection_id: int, client_id: ClientId) -> bool:
        """Whether this connection speaks for the client."""
        known = self._registrations.get(client_id)
        return known is not None and known.peer.connection_id == connection_id

    def connection_ids(self) -> list[int]:
        return [known.peer.connection_id for known in self._registrations.values()]

    def remove(self, connection_id: int) -> None:
        """Forget the connection."""
        self._sampled.pop(connection_id, None)
        for client_id, known in self._registrations.items():
            if known.peer.connection_id == connection_id:
                del self._registrations[client_id]
                self._gone[client_id] = known
                if len(self._gone) > self._gone_max:
                    del self._gone[next(iter(self._gone))]
                return
