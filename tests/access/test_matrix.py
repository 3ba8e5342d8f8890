"""Every message, asked by every role, in every version of the protocol: at a server over TLS, and
for the ports of a storage node at the decision.

What is expected comes from two tables here, which share nothing with the product: a message that is
in neither of them fails a test.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import Phase, find, settings

from tests.server.builders import PARTITION
from tests.server.test_enforcement_shell import Setting, play
from tests.shares import one_in
from tests.wire.strategies import messages
from waltz.access.permissions import Permissions
from waltz.access.policy_text import parse_policy
from waltz.types import NO_GENERATION, ClientId, PartitionId, RequestId
from waltz.wire.admin_protocol import ADMIN_CODEC
from waltz.wire.client_protocol import CLIENT_CODEC, MountResponse, MountState
from waltz.wire.denial_protocol import Denied
from waltz.wire.lifecycle_protocol import Feature
from waltz.wire.message import Audience, Codec, Message
from waltz.wire.storage_protocol import STORAGE_CODEC

VERB_OF = {
    "connect": "TopologyRequest ClientIdRequest OpenRequest AdminOpenRequest",
    "append": "AppendRequest AppendBatch",
    "read": """MountRequest FeedRequest TransactionDataRequest FlushRequest HighWaterMarkRequest
        DataWanted OutcomeRequest ReadRequest HeadersRequest HistoriesRequest MarksRequest
        AppliedMarks AdminRecordListRequest""",
    "status": """CheckStorageConnectivityRequest ServerPartitionsAssignmentRequest
        ServerPartitionsHealthRequest PartitionProblemsRequest PartitionReportsRequest GrowthRequest
        DurationsRequest ClientsRequest CoordinatorRequest AdminLastSessionInfoRequest
        MetricsRequest AssignedPartitionStatusRequest PartitionCountRequest""",
    "explain": "RefusalsRequest HotLocksRequest JournalRequest",
    "prefer": "AddPreferredPartitionRequest RemovePreferredPartitionRequest",
    "cut": "HoldRequest HoldReleaseRequest",
    "server": """LastSessionInfoRequest SetLowWaterMarkRequest TruncateRequest
        AppendRecordsRequest RecordHeaderRequest RecordRequest MaxTransactionIdRequest
        RecordHeaderListRequest RecordListRequest ReplicaStateRequest RepairRequest
        AcceptDamageRequest NoteClientsRequest""",
    "admin": "PartitionAvailableRequest PartitionAccessRequest PartitionAssignmentRequest",
}
NEEDED = {name: verb for verb, names in VERB_OF.items() for name in names.split()}
ALONE = ("append", "read", "status", "explain", "prefer", "cut", "server", "admin")
MAY = {
    **{verb: {verb, "connect"} for verb in ALONE},
    "connected": {"connect"},
    "nobody": set(),
    "glass": {"connect", *ALONE},
}
"""The verbs of each principal."""

POLICY = "\n".join(
    [
        "version: 1",
        "mode: deny",
        "default: deny",
        'break_glass: ["spiffe://tests/glass"]',
        "roles:",
        *(f"  {verb}: {{verbs: [{verb}], partitions: all}}" for verb in ALONE),
        "  connected: {verbs: [connect]}",
        "grants:",
        *(f'  "spiffe://tests/{name}": [{name}]' for name in (*ALONE, "connected")),
    ]
)
CODECS = (CLIENT_CODEC, STORAGE_CODEC, ADMIN_CODEC)
ASKED = {Audience.PARTITION, Audience.SERVER, Audience.STRANGERS_SERVER}


def asks(kind: type[Message], codec: Codec) -> bool:
    """Whether something is asked by the message; the others are answers, or of the connection."""
    if codec is CLIENT_CODEC:
        return kind.AUDIENCE in ASKED
    return kind.__name__.endswith("Request")


def kinds_of(codec: Codec, version: int) -> list[type[Message]]:
    return [kind for kind in codec.messages if asks(kind, codec) and version >= kind.SINCE]


def sample(kind: type[Message], version: int) -> Message:
    """Return the smallest message of the kind, about PARTITION."""
    # The first that is drawn is the smallest: to look for smaller ones takes a second per message.
    drawn = find(
        messages(kind, version),
        lambda _: True,
        settings=settings(database=None, max_examples=1, phases=[Phase.generate]),
    )
    names = {field.name for field in fields(drawn)}  # type: ignore[arg-type]
    about = {
        "request_id": RequestId(ClientId(7), NO_GENERATION, PartitionId(PARTITION), 1),
        "partition_id": PartitionId(PARTITION),
        "partition_ids": (PARTITION,),
    }
    return replace(drawn, **{name: about[name] for name in names & about.keys()})  # type: ignore[type-var]


def test_the_tables_have_every_message_that_asks_for_something_and_no_other() -> None:
    kinds = [kind.__name__ for codec in CODECS for kind in codec.messages if asks(kind, codec)]
    assert sorted(kinds) == sorted(NEEDED)


@pytest.mark.parametrize("codec", one_in(2, CODECS), ids=["client", "storage", "admin"])
def test_every_role_may_ask_at_every_port_what_its_verb_says_and_nothing_else(codec: Codec) -> None:
    policy, outcomes = parse_policy(POLICY.encode(), "policy.yaml"), Counter[bool]()
    for version in codec.versions:
        for kind in kinds_of(codec, version):
            message = sample(kind, version)
            for name, verbs in MAY.items():
                permissions = Permissions(f"spiffe://tests/{name}")
                denied = [*permissions.denials(policy, [message])]
                assert (NEEDED[kind.__name__] in verbs) == (not denied), (version, kind, name)
                assert {each.verb.value for each in denied} <= {NEEDED[kind.__name__]}
                outcomes[bool(denied)] += 1
    assert min(outcomes.values()) > 80


CASES: list[tuple[int, tuple[Feature, ...]]] = [
    *((version, ()) for version in CLIENT_CODEC.versions),
    (5, (Feature.DENIALS,)),
]


@pytest.mark.parametrize("case", one_in(3, CASES))
def test_a_server_denies_every_role_exactly_what_its_verb_does_not_say(
    tmp_path: Path, case: tuple[int, tuple[Feature, ...]]
) -> None:
    """Behind each message comes one that no client may send, which ends the connection: by then the
    message before it was denied, or it was not. Nothing of that read is served."""
    version, features = case
    samples = {kind: sample(kind, version) for kind in kinds_of(CLIENT_CODEC, version)}
    request_id = RequestId(ClientId(7), NO_GENERATION, PartitionId(PARTITION), 1)
    impossible = MountResponse(request_id, MountState.READY)

    async def ask(setting: Setting, name: str, kind: type[Message]) -> None:
        before = setting.denials()
        peer = await setting.peer(name, version, *features)
        peer.say(samples[kind], impossible)
        await peer.is_ended()
        verb = NEEDED[kind.__name__]
        expected = {} if verb in MAY[name] else {(verb, "denied"): 1}
        found = Counter(setting.denials())
        found.subtract(before)
        assert +found == expected, (name, kind)
        told = [each for each in peer.heard if isinstance(each, Denied)]
        assert [each.verb for each in told] == [verb for _ in expected if features]
        assert [each for each in peer.heard if not isinstance(each, Denied)] == []

    async def scene(setting: Setting) -> None:
        for name in MAY:
            for kind in samples:
                await asyncio.wait_for(ask(setting, name, kind), 120.0)
        assert setting.server.state().partitions[PARTITION].high_water_mark == -1
        assert setting.server.state().preferred_partitions == ()

    play(tmp_path, scene, POLICY)
