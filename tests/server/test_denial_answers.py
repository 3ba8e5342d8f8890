"""The answers of a server to what its policy denies: as values, and over TLS to peers that know
them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.fake_cluster import until
from tests.server.builders import PARTITION, append, flush, mount
from tests.server.test_enforcement_shell import POLICY, Peer, Setting, mark, play, with_header
from waltz.access.permissions import Denial
from waltz.access.policy import Verb
from waltz.server.denial_answers import denied
from waltz.types import PartitionId
from waltz.wire.batch_protocol import AppendBatch, AppendRejected, FeedBatch, Reason
from waltz.wire.client_protocol import (
    FeedRequest,
    FlushRequest,
    FlushResponse,
    MountRequest,
)
from waltz.wire.cut_protocol import HoldRequest
from waltz.wire.denial_protocol import (
    DENIED_PRINCIPAL_BYTES_MAX,
    DENIED_REASON_BYTES_MAX,
    NO_PARTITION,
    Denied,
    no_request,
)
from waltz.wire.discovery_protocol import ClientIdRequest, TopologyRequest
from waltz.wire.lifecycle_protocol import Feature
from waltz.wire.message import Message

READ = (Verb.READ, PartitionId(8), "no role", False)


def test_the_answer_names_the_request_what_it_lacks_and_why() -> None:
    request = mount()
    assert denied(Denial(*READ, request), "CN=a") == Denied(
        MountRequest.CODE, request.request_id, 1, PartitionId(8), "read", "CN=a", "no role"
    )
    question = TopologyRequest(True)
    connect = Denial(Verb.CONNECT, None, "no grant", False, question)
    assert denied(connect, "CN=a") == Denied(
        TopologyRequest.CODE, no_request(NO_PARTITION), 1, NO_PARTITION, "connect", "CN=a",
        "no grant",
    )  # fmt: skip


def test_a_mount_that_is_withdrawn_has_no_request() -> None:
    answer = denied(Denial(*READ, None), "CN=a")
    assert (answer.request_code, answer.request_id) == (0, no_request(PartitionId(8)))


def test_the_answer_is_bounded_whatever_the_policy_says() -> None:
    answer = denied(Denial(Verb.READ, None, "ü" * 10_000, False, mount()), "ü" * 10_000)
    assert len(answer.principal.encode()) <= DENIED_PRINCIPAL_BYTES_MAX
    assert len(answer.reason.encode()) <= DENIED_REASON_BYTES_MAX


async def heard_denied(peer: Peer) -> Denied:
    answer = await peer.hear(Denied)
    assert isinstance(answer, Denied)
    return answer


def test_appends_that_are_denied_are_answered_and_the_others_of_the_same_read_are_written(
    tmp_path: Path,
) -> None:
    async def scene(setting: Setting) -> None:
        orders = await setting.peer("orders", 5, Feature.DENIALS)
        await orders.mount()
        # What follows on each other would be one batch.
        appends = (with_header(number, 5 * (number == 3)) for number in (1, 3, 5))
        orders.say(*appends, flush(5))
        answer = await heard_denied(orders)
        assert answer.request_code == AppendBatch.CODE
        assert (answer.request_id.sequence_number, answer.count) == (3, 1)
        assert (answer.verb, answer.partition_id) == ("append", PARTITION)
        assert answer.principal == "spiffe://tests/orders"
        assert answer.reason.endswith("at partition 3 with header 5")
        await orders.hear(FlushResponse)
        assert mark(setting.server) == 1, "two of three"
        assert setting.denials() == {("append", "denied"): 1}

    play(tmp_path, scene)


def test_a_denied_mount_is_answered_and_another_partition_is_fed(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        orders = await setting.peer("orders", 5, Feature.DENIALS)
        other = mount()
        denied_id = other.request_id._replace(partition_id=PartitionId(1))
        orders.say(MountRequest(denied_id, other.client_high_water_mark, 0))
        answer = await heard_denied(orders)
        assert (answer.request_code, answer.request_id) == (MountRequest.CODE, denied_id)
        assert (answer.verb, answer.partition_id) == ("read", 1)
        await orders.mount()
        assert setting.server.state().partitions[1].mounts == 0

    play(tmp_path, scene)


REFUSED = [
    (HoldRequest(1, 5), "cut", "spark"),
    (flush(), "read", "ann"),
]


@pytest.mark.parametrize(("message", "verb", "name"), REFUSED)
def test_a_question_that_is_denied_is_answered(
    tmp_path: Path, message: Message, verb: str, name: str
) -> None:
    async def scene(setting: Setting) -> None:
        peer = await setting.peer(name, 5, Feature.DENIALS)
        peer.say(message, TopologyRequest(False))
        answer = await heard_denied(peer)
        assert (answer.request_code, answer.verb) == (message.CODE, verb)
        assert answer.request_id == getattr(message, "request_id", no_request(NO_PARTITION))

    play(tmp_path, scene)


@pytest.mark.parametrize("message", [TopologyRequest(True), ClientIdRequest(1)])
def test_nobody_is_told_why_before_the_connection_ends(tmp_path: Path, message: Message) -> None:
    async def scene(setting: Setting) -> None:
        nobody = await setting.peer("nobody", 5, Feature.DENIALS)
        nobody.say(message, flush())
        ended = await nobody.is_ended()
        (answer,) = nobody.heard
        assert isinstance(answer, Denied)
        assert (answer.verb, answer.partition_id) == ("connect", NO_PARTITION)
        assert ended == f"denied: {answer.reason}"

    play(tmp_path, scene)


def test_another_policy_withdraws_a_mount_and_a_third_gives_it_back(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        spark = await setting.peer("spark", 5, Feature.DENIALS)
        orders = await setting.peer("orders", 5, Feature.DENIALS)
        await spark.mount()
        await orders.mount(client=8)
        spark.say(FeedRequest(mount().request_id, mount().client_high_water_mark))
        orders.say(append(1, client=8))
        await spark.hear(FeedBatch)
        setting.policy.write_text(POLICY.replace("partitions: all", "partitions: 1"))
        answer = await heard_denied(spark)
        assert (answer.request_code, answer.request_id) == (0, no_request(PartitionId(PARTITION)))
        await until(lambda: setting.server.state().partitions[PARTITION].mounts == 1)
        orders.say(append(2, client=8), flush(2, client=8))
        await orders.hear(FlushResponse)
        spark.say(flush())
        assert (await heard_denied(spark)).request_code == FlushRequest.CODE
        assert not any(isinstance(each, FeedBatch) for each in spark.heard)
        setting.policy.write_text(POLICY.replace("version: 7", "version: 8"))
        await until(lambda: setting.server.state().policy.version == 8)  # type: ignore[union-attr]
        await spark.mount()

    play(tmp_path, scene)


def test_what_was_sent_before_a_mount_is_withdrawn_is_still_decided(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        orders = await setting.peer("orders", 5, Feature.DENIALS)
        await orders.mount()
        orders.say(append(1))
        await until(lambda: mark(setting.server) == 0)
        setting.policy.write_text(POLICY.replace("partitions: 3", "partitions: 1"))
        await heard_denied(orders)
        setting.policy.write_text(POLICY.replace("version: 7", "version: 8"))
        await until(lambda: setting.server.state().policy.version == 8)  # type: ignore[union-attr]
        orders.say(append(2))
        answer = await orders.hear(AppendRejected)
        assert isinstance(answer, AppendRejected)
        assert answer.rejections[0].reason is Reason.NOT_MOUNTED
        assert mark(setting.server) == 0

    play(tmp_path, scene)
