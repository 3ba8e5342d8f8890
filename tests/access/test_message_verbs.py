"""The table of messages and verbs has them all."""

from __future__ import annotations

from uuid import UUID

import pytest

from waltz.access.message_verbs import NEEDED_VERB, WITHOUT_VERB, partitions_asked
from waltz.access.policy import Verb
from waltz.types import ClientId, Generation, PartitionId, RequestId, SessionId
from waltz.wire.admin_protocol import (
    ADMIN_CODEC,
    PartitionAccessRequest,
    PartitionAssignmentRequest,
    PartitionAvailableRequest,
)
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    AddPreferredPartitionRequest,
    FlushRequest,
    ServerPartitionsHealthRequest,
)
from waltz.wire.message import Audience, Message
from waltz.wire.storage_protocol import STORAGE_CODEC, MaxTransactionIdRequest, OpenRequest

CODECS = (CLIENT_CODEC, STORAGE_CODEC, ADMIN_CODEC)
SERVED = {Audience.PARTITION, Audience.SERVER, Audience.STRANGERS_SERVER}


@pytest.mark.parametrize(
    "kind", [kind for codec in CODECS for kind in codec.messages], ids=lambda kind: kind.__name__
)
def test_each_message_needs_a_verb_or_is_known_to_need_none(kind: type[Message]) -> None:
    assert (kind in NEEDED_VERB) != (kind in WITHOUT_VERB)


@pytest.mark.parametrize("kind", CLIENT_CODEC.messages, ids=lambda kind: kind.__name__)
def test_what_a_server_serves_needs_a_verb(kind: type[Message]) -> None:
    """The audience was declared for another reason, and says the same."""
    assert (kind.AUDIENCE in SERVED) == (kind in NEEDED_VERB)


def test_whatever_names_a_session_to_a_storage_node_needs_server() -> None:
    """A replica promises a session that is new to it, whatever is asked."""
    needed = {kind: NEEDED_VERB.get(kind) for kind in STORAGE_CODEC.messages}
    opening = needed.pop(OpenRequest)
    assert opening is Verb.CONNECT
    assert {verb for kind, verb in needed.items() if kind not in WITHOUT_VERB} == {Verb.SERVER}


def test_whatever_changes_something_at_the_admin_port_needs_admin() -> None:
    changing = {kind for kind in ADMIN_CODEC.messages if NEEDED_VERB.get(kind) is Verb.ADMIN}
    assert changing == {
        PartitionAvailableRequest,
        PartitionAccessRequest,
        PartitionAssignmentRequest,
    }


def test_the_table_names_no_message_that_is_in_no_protocol() -> None:
    known = {kind for codec in CODECS for kind in codec.messages}
    assert known == NEEDED_VERB.keys() | WITHOUT_VERB


def test_each_verb_is_needed_by_some_message() -> None:
    assert set(NEEDED_VERB.values()) == set(Verb)


def test_a_message_asks_for_the_partitions_that_it_names() -> None:
    request_id = RequestId(ClientId(1), Generation(0), PartitionId(7), 3)
    session = SessionId(1)
    assert partitions_asked(FlushRequest(request_id)) == (7,)
    assert partitions_asked(ServerPartitionsHealthRequest(request_id)) == ()
    both = (PartitionId(1), PartitionId(2))
    assert partitions_asked(AddPreferredPartitionRequest(request_id, both)) == both
    assert partitions_asked(MaxTransactionIdRequest(session, 0, PartitionId(4), False)) == (4,)
    assert partitions_asked(PartitionAvailableRequest(0, both, True)) == both
    assert partitions_asked(OpenRequest(session, 0, PartitionId(-1), UUID(int=0), 4)) == ()
