"""Clients and servers of the Java original talk to our processes: byte for byte what it printed.

What must differ is patched and named: transaction and sequence numbers where the original's frames
do not follow each other.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

import waltz
from tests.interop.conversation import FRAMES, Conversation, patched, with_versions
from tests.interop.nodes import PARTITIONS, Guard, Nodes, running_nodes
from tests.storage.support import batch
from waltz.cluster.partition_metadata import NEW_PARTITION
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.host import Coordinator
from waltz.types import PartitionId, SessionId, TransactionId
from waltz.wire.client_protocol import BATCHES_SINCE, CLIENT_CODEC
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    AppendRecordsRequest,
    SetLowWaterMarkRequest,
)

pytestmark = pytest.mark.processes

PARTITION = PartitionId(2)
"""Of all frames of the original."""

BEFORE = 100
"""Transactions before the one that its frames are about, which is number 100."""


OUR_HELLO = with_versions(FRAMES["hello server"], *CLIENT_CODEC.versions)
"""What a server of the original says, with the versions that only ours knows."""

VERSIONS = CLIENT_CODEC.up_to(BATCHES_SINCE - 1).versions
"""All that the original knows."""


def number(value: int) -> bytes:
    return struct.pack(">q", value)


GUARDED = "under a policy"


@pytest.fixture(params=["plain", GUARDED])
def guard(request: pytest.FixtureRequest, tmp_path: Path) -> Guard | None:
    """None, or the policy that the processes of the cluster ask, with certificates over TLS."""
    return None if request.param == "plain" else Guard(tmp_path)


@pytest.mark.parametrize(
    ("version", "guard"),
    [(each, "plain") for each in VERSIONS]
    + [
        pytest.param(each, GUARDED, marks=() if each in (0, 4) else pytest.mark.long)
        for each in VERSIONS
    ],
    indirect=["guard"],
)
def test_a_client_of_the_original_writes_follows_and_reads(
    tmp_path: Path, guard: Guard | None, version: int
) -> None:
    """CS-01, CS-05, PM-01: every request there is, in each version of the protocol."""

    def golden(name: str) -> bytes:
        return FRAMES[f"V{version} {name}"]

    with running_nodes(tmp_path, guard=guard) as nodes:
        tls = nodes.tls("client")
        with waltz.open_client(str(nodes.coordinator), waltz.NoCallbacks(), tls=tls) as client:
            for value in range(BEFORE):
                assert client.append(PARTITION, b"%d" % value) == value
        talk = nodes.talk(nodes.server, "client")
        talk.say(with_versions(FRAMES["hello client"], version))
        assert talk.hear() == OUR_HELLO
        talk.say(golden("MountRequest hwm=99 seq=1"))
        assert talk.hear() == golden("MountResponse state=0")
        talk.say(golden("FeedRequest"), golden("Append w[1,-2]"))
        assert talk.hear() == golden("FeedData")
        talk.say(golden("TxDataRequest"))
        assert talk.hear() == golden("TxDataResponse ok")
        talk.say(golden("FlushRequest"))
        assert talk.hear() == golden("FlushResponse")
        talk.say(golden("HwmRequest"))
        assert talk.hear() == golden("HwmResponse")
        # It has not seen transaction 100, which took the lock.
        talk.say(golden("Append w[1,-2]"))
        assert talk.hear() == golden("LockFailure")
        talk.say(golden("Append nolocks"))
        assert talk.hear() == patched(golden("FeedData"), [(17, number(BEFORE + 1))])
        if version >= 1:
            talk.say(golden("CheckStorageReq"))
            answer = talk.hear()
            place = str(nodes.data).encode()
            named = struct.pack(">ii", 1, len(place)) + place + b"\1"
            assert answer[7:] == golden("CheckStorageResp")[7:24] + named
        if version >= 2:
            for kind in "AddPref", "RemPref":
                request = golden(f"{kind}Req")
                asked = [(1, request[8:24])]  # the request ID is another one in the answer
                talk.say(request)
                assert talk.hear()[:24] == patched(golden(f"{kind}Resp"), asked)[:24]
            talk.say(golden("AssignReq"))
            all_four = struct.pack(">iiiii", PARTITIONS, 0, 1, 2, 3)
            assert talk.hear()[7:] == golden("AssignResp")[7:24] + all_four
        if version >= 4:
            talk.say(golden("HealthReq"))
            assert talk.hear()[7:24] == golden("HealthResp")[7:24]
        talk.close()


@pytest.mark.parametrize("version", [2, 3])  # the last one with two states, the first with three
def test_a_client_of_the_original_that_is_ahead_or_too_early_is_told_so(
    tmp_path: Path, version: int
) -> None:
    """CS-07, CS-08: nothing is in the partition, and one that there is not."""

    def golden(name: str) -> bytes:
        return FRAMES[f"V{version} {name}"]

    absent = [(9, struct.pack(">i", 9))]  # the partition that the request names
    with running_nodes(tmp_path) as nodes:
        with waltz.open_reader(str(nodes.coordinator)) as reader:
            assert reader.high_water_mark(PARTITION) == waltz.NOTHING, "it is open"
        talk = Conversation(nodes.server)
        talk.say(with_versions(FRAMES["hello client"], version))
        assert talk.hear() == OUR_HELLO
        talk.say(patched(golden("TxDataRequest"), absent))
        assert talk.hear() == patched(golden("TxDataResponse fail"), absent)
        talk.say(golden("MountRequest hwm=99 seq=1"))
        assert talk.hear() == golden("MountResponse state=2")
        talk.say(patched(golden("MountRequest hwm=99 seq=1"), absent))
        assert talk.hear() == patched(golden("MountResponse state=1"), absent)
        talk.close()


def give(nodes: Nodes, session: SessionId) -> None:
    """Have the coordinator know the session, as servers of the original do before they use it."""

    async def write(door: Coordinator) -> None:
        path = ClusterPaths(DEFAULT_ROOT).partition_metadata(PARTITION)
        given = replace(NEW_PARTITION, session_id=session)
        await door.create(path, given.encode(PARTITION))

    nodes.loop.ask(write)


def prepare(talk: Conversation) -> None:
    """Session 8 begins at mark 99 with 99 transactions here; one more, and all is as it was where
    the original printed."""

    def ask(request: AppendRecordsRequest | SetLowWaterMarkRequest) -> None:
        talk.say(STORAGE_CODEC.encode(request, 0))
        assert talk.hear()[7] == 7, "a success"

    before, session = SessionId(7), SessionId(8)
    ask(AppendRecordsRequest(before, 1, PARTITION, batch(0, 99, partition=2), offline=False))
    ask(SetLowWaterMarkRequest(session, 2, PARTITION, TransactionId(99), offline=False))
    ask(AppendRecordsRequest(session, 3, PARTITION, batch(99, 1, partition=2), offline=False))


def test_a_server_and_a_tool_of_the_original_use_a_storage_node(
    tmp_path: Path, guard: Guard | None
) -> None:
    """SN-01, SN-14, SN-20: every request there is, in the order of their sequence numbers."""
    golden = FRAMES
    with running_nodes(tmp_path, server=False, guard=guard) as nodes:
        talk = nodes.talk(nodes.data, "server")
        talk.say(golden["hello Waltz Storage Client"], golden["S Open"])
        hello = talk.hear()
        assert hello[-20:] == golden["hello Waltz Storage Server"][-20:], "it knows more versions"
        assert talk.hear() == golden["S Success open"]
        give(nodes, SessionId(100))
        prepare(talk)
        tool = nodes.talk(nodes.admin, "tool")
        tool.say(golden["hello Waltz Storage Admin Client"], golden["A Open"])
        tool.hear()
        assert tool.hear() == golden["A Success open"]
        tool.say(golden["A LsiReq"])
        assert tool.hear() == golden["A LsiResp"]
        talk.say(golden["S LastSessionInfoReq"])
        assert talk.hear() == golden["S LastSessionInfoResp"]
        talk.say(golden["S SetLWM"])
        assert talk.hear() == patched(golden["S Success"], [(9, number(2))])
        talk.say(golden["S Truncate"])
        truncated = patched(golden["S MaxResp"], [(9, number(3)), (21, number(99))])
        assert talk.hear() == truncated
        for request, answer in (
            ("S Append", "S Success"),
            ("S RecHdrReq", "S RecHdrResp"),
            ("S RecReq", "S RecResp"),
            ("S MaxReq", "S MaxResp"),
            ("S HdrListReq", "S HdrListResp"),
            ("S RecListReq", "S RecListResp"),
            ("S Append empty", "S Success"),
        ):
            talk.say(golden[request])
            assert talk.hear() == golden[answer], request
        talk.say(golden["S Append"])
        refused = talk.hear()
        assert refused[7:28] == golden["S Failure wrapped"][7:28], "a failure of that request"
        assert b"transaction out of order" in refused
        tool.say(golden["A RecListReq"])
        assert tool.hear() == golden["A RecListResp"]
        tool.say(golden["A StatusReq"])
        assert (
            tool.hear()[:16]
            == golden["A StatusResp"][:3]
            + struct.pack(">i", 13 + 5 * 4)
            + golden["A StatusResp"][7:16]
        )
        tool.say(golden["A MetricsReq"])
        metrics = tool.hear()
        assert metrics[7:16] == golden["A MetricsResp"][7:16]
        assert json.loads(metrics[20:])
        for request in ("A Avail", "A Assign"):
            tool.say(golden[request])
            sequence = golden[request][8:16]
            assert tool.hear() == patched(golden["A Success"], [(1, sequence)])
        talk.close()
        tool.close()
