"""Permissions of one connection: each verb and partition is decided once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.access.oracle import rights
from tests.access.test_policy import EXAMPLE, UNIVERSE, policy, random_policy
from waltz.access.permissions import RULINGS_MAX, Denial, Permissions
from waltz.access.policy import VERBS, Policy, Verb
from waltz.arrays import np
from waltz.types import NOTHING, ClientId, Generation, PartitionId, RequestId
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.client_protocol import (
    AddPreferredPartitionRequest,
    AppendRequest,
    FlushRequest,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz.wire.clients_protocol import AppliedMark, AppliedMarks
from waltz.wire.columns import AppendColumns, Bodies
from waltz.wire.discovery_protocol import TopologyRequest

ORDERS = "spiffe://prod/orders"
POLICY = policy()


def request_id(partition_id: int) -> RequestId:
    return RequestId(ClientId(1), Generation(1), PartitionId(partition_id), 1)


def appends(partition_id: int, *headers: int) -> AppendBatch:
    count = len(headers)
    return AppendBatch(
        request_id(partition_id),
        AppendColumns(
            np.full(count, -1, np.int64),
            np.array(headers, np.int32),
            np.zeros((count, 3), np.uint16),
            np.zeros(0, np.int32),
            Bodies([b""] * count, np.zeros(count, np.uint32)),
        ),
    )


def denied(principal: str, *messages: object, by: Policy = POLICY) -> list[tuple[object, ...]]:
    found = Permissions(principal).denials(by, messages)  # type: ignore[arg-type]
    return [(each.verb.value, each.partition_id, each.reason) for each in found]


def test_a_batch_with_one_header_that_is_not_allowed_is_denied_and_the_header_named() -> None:
    assert denied(ORDERS, appends(3, 100, 150, 199)) == []
    assert denied(ORDERS, appends(3, 100, 200, 99)) == [
        ("append", 3, f"no role of {ORDERS} has append at partition 3 with header 200")
    ]
    single = AppendRequest(request_id(3), NOTHING, (), (), (), 99, b"", 0)
    assert [each[:2] for each in denied(ORDERS, single)] == [("append", 3)]
    assert denied(ORDERS, replace(single, header=100)) == []


def test_headers_of_several_roles_count_only_where_each_role_may_append() -> None:
    assert denied("CN=both", appends(2, -5, -1, 7, 100, 199)) == []
    assert [each[:2] for each in denied("CN=both", appends(9, -5, 100))] == [("append", 9)]
    assert [each[:2] for each in denied("CN=both", appends(3, 7))] == [("append", 3)]


def test_an_append_where_nothing_may_be_appended_is_denied_with_any_header() -> None:
    assert [each[:2] for each in denied(ORDERS, appends(8, 150))] == [("append", 8)]
    assert [each[:2] for each in denied("CN=spark", appends(0, 150))] == [("append", 0)]


def test_each_partition_that_a_message_names_is_asked_for() -> None:
    marks = AppliedMarks(tuple(AppliedMark(PartitionId(each), NOTHING) for each in (7, 8, 9)))
    assert [each[:2] for each in denied(ORDERS, marks)] == [("read", 8), ("read", 9)]
    prefer = AddPreferredPartitionRequest(request_id(0), (PartitionId(1), PartitionId(2)))
    assert [each[:2] for each in denied(ORDERS, prefer)] == [("prefer", 1), ("prefer", 2)]


def test_who_has_a_role_may_connect_and_nobody_else() -> None:
    question = TopologyRequest(True)
    assert denied("CN=spark", question) == []
    assert [each[:2] for each in denied("anonymous", question)] == [("connect", None)]


def test_what_needs_no_verb_is_never_denied() -> None:
    assert denied("anonymous", MountResponse(request_id(0), MountState.READY)) == []


def test_a_denial_says_whether_it_is_the_first_and_another_policy_begins_anew() -> None:
    permissions = Permissions("CN=spark")
    wanted = [appends(0, 1), appends(1, 1), appends(0, 1), FlushRequest(request_id(0))]

    def repeated(by: Policy) -> list[bool]:
        return [each.is_repeated for each in permissions.denials(by, wanted)]

    assert repeated(POLICY) == [False, False, True]
    assert repeated(POLICY) == [True, True, True]
    assert repeated(policy()) == [False, False, True]
    assert repeated(policy(EXAMPLE.replace("[reader]", "[refunds]"))) == [False] * 2 + [True, False]


def test_another_policy_counts_from_the_next_message_on() -> None:
    permissions = Permissions("CN=spark")
    mount = [MountRequest(request_id(5), NOTHING, 0)]
    assert [*permissions.denials(POLICY, mount)] == []
    narrow = policy(
        EXAMPLE.replace("verbs: [read], partitions: all", "verbs: [read], partitions: 4")
    )
    reason = "no role of CN=spark has read at partition 5"
    assert [*permissions.denials(narrow, mount)] == [
        Denial(Verb.READ, PartitionId(5), reason, is_repeated=False, message=mount[0])
    ]


def test_a_connection_has_lost_the_mounts_whose_partitions_are_taken_away() -> None:
    spark, orders = Permissions("CN=spark"), Permissions(ORDERS)
    assert [*spark.lost(POLICY, map(PartitionId, (0, 99)))] == []
    lost = [*orders.lost(POLICY, map(PartitionId, (0, 8, 9)))]
    assert [each[:2] for each in lost] == [(Verb.READ, 8), (Verb.READ, 9)]
    assert [each.message for each in lost] == [None, None]
    nobody = [*Permissions("CN=nobody").lost(POLICY, map(PartitionId, (3,)))]
    assert [each.verb for each in nobody] == [Verb.CONNECT, Verb.READ]


def test_a_peer_that_asks_for_every_partition_takes_no_more_memory() -> None:
    permissions = Permissions("CN=spark")
    asked = [FlushRequest(request_id(each)) for each in range(3 * RULINGS_MAX)]
    assert [*permissions.denials(POLICY, asked)] == []
    assert len(permissions._rulings) <= RULINGS_MAX
    assert [each[:2] for each in denied("CN=spark", appends(0, 1))] == [("append", 0)]


def test_an_oracle_that_lists_every_right_agrees_about_batches() -> None:
    drawn = random.Random(63)
    outcomes = {True: 0, False: 0}
    headers = [each for each in UNIVERSE.headers if each is not None]
    for _ in range(60):
        text = random_policy(drawn)
        expected, tried = rights(text, UNIVERSE), policy(text)
        for principal in UNIVERSE.principals:
            permissions = Permissions(principal)
            for _ in range(10):
                place = drawn.choice([each for each in UNIVERSE.partitions if each is not None])
                batch: Sequence[int] = drawn.choices(headers, k=drawn.randint(1, 3))
                may = all((principal, "append", place, each) in expected for each in batch)
                found = [*permissions.denials(tried, [appends(place, *batch)])]
                assert may == (not found), (text, principal, place, batch)
                outcomes[may] += 1
                may = (principal, "read", place, None) in expected
                found = [*permissions.denials(tried, [FlushRequest(request_id(place))])]
                assert may == (not found), (text, principal, place)
    assert min(outcomes.values()) > 500, "the questions tell both answers apart"
    assert set(VERBS) == set(UNIVERSE.verbs)
