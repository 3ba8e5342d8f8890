"""`waltz explain`: what is said of a transaction, by value and of a running cluster."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest
from click.testing import CliRunner

import waltz
from tests.clusters import RunningCluster, run_tool, wait_until
from waltz.cli.commands import waltz as command
from waltz.cli.explain import as_lines, as_values
from waltz.client.transaction import PartitionLocalLock
from waltz.console.transaction_life import life_of
from waltz.operators.authors import Author
from waltz.operators.explanation_shell import (
    REFUSALS_EXPLAINED_MAX,
    Copy,
    CopyStanding,
    Explanation,
)
from waltz.operators.journals_shell import ReplicaTime, TransactionTimes
from waltz.operators.replicas_shell import Replica
from waltz.record import Record
from waltz.types import (
    ClientId,
    Generation,
    PartitionId,
    ReplicaId,
    RequestId,
    SessionId,
    TransactionId,
)
from waltz.wire.journal_facts import DurableInterval
from waltz.wire.report_protocol import RefusalEntry, RefusalsKept, RefusalsReport

P0 = PartitionId(0)
REQUEST_ID = RequestId(ClientId(7), Generation(1), P0, 11)
LOSER = RequestId(ClientId(8), Generation(1), P0, 5)
NODES = [ReplicaId(f"s{number}:1") for number in (1, 2, 3)]
INTERVAL = DurableInterval(1_700_000_000_000, 1_700_000_000_500)
KNOWN = Explanation(
    P0,
    TransactionId(5),
    TransactionId(9),
    "",
    Record(TransactionId(5), REQUEST_ID, 3, b"paid\x1b[31m", 0),
    tuple(Copy(node, CopyStanding.SAME, "") for node in NODES),
    TransactionTimes(
        TransactionId(5),
        tuple(
            ReplicaTime(Replica(P0, node, 1, True, None), INTERVAL, SessionId(4), "")
            for node in NODES
        ),
        *INTERVAL[:2],
        0,
    ),
    Author(ClientId(7), "orders", "orders-1", "app.py 0.1.0", "", "h:1", "server v1:1 has it"),
    "",
    RefusalsReport(
        0,
        RefusalsKept(3, 3, 9000),
        (RefusalEntry(LOSER, 9, TransactionId(5), True, 500),),
    ),
    "",
)


def said(explanation: Explanation) -> str:
    return "\n".join(as_lines(explanation))


def test_refusals_that_fill_the_answer_are_not_said_to_be_all() -> None:
    report = KNOWN.refusals
    assert report is not None
    many = replace(
        report,
        kept=RefusalsKept(5_000, 5_000, 9000),
        refusals=report.refusals * REFUSALS_EXPLAINED_MAX,
    )
    assert "1000 or more refused appends known to its server" in said(replace(KNOWN, refusals=many))
    assert life_of(replace(KNOWN, refusals=many)).has_more_refusals
    exactly = replace(many, kept=RefusalsKept(5_000, REFUSALS_EXPLAINED_MAX, 9000))
    assert "1000 refused appends known" in said(replace(KNOWN, refusals=exactly))
    assert not life_of(replace(KNOWN, refusals=exactly)).has_more_refusals


def test_a_committed_transaction_is_told_with_author_times_copies_and_refusals() -> None:
    text = said(KNOWN)
    assert text.startswith("partition 0, transaction 5: committed\n")
    for part in (
        "request ID  7:1:0:11",
        "author      orders (client 7; instance orders-1, app.py 0.1.0, from h:1, without a cert",
        "on a majority between 2023-11-14T22:13:20.000Z and 2023-11-14T22:13:20.500Z",
        "s2:1  has it, read and checked now; durable between",
        "by session 4",
        "1 refused append known to its server, 1 for a lock that it wrote",
        "the newest: 8:1:0:5 for lock hash 00000009, 0.5 s ago",
    ):
        assert part in text
    assert "\x1b" not in text
    values = as_values(KNOWN)
    assert (values["committed"], values["author"]["name"]) == (True, "orders")
    assert {each["copy"] for each in values["copies"]} == {"same"}


def test_what_nobody_could_tell_is_unknown_with_the_reason() -> None:
    unknown = replace(
        KNOWN,
        high_water_mark=None,
        mark_trouble="partition 0 has no server now",
        copies=(
            Copy(NODES[0], CopyStanding.SAME, ""),
            Copy(NODES[1], CopyStanding.UNKNOWN, "no answer from s2:2 in 5 s"),
            Copy(NODES[2], CopyStanding.DIFFERENT, "it is another record than the others have"),
        ),
        times=TransactionTimes(
            TransactionId(5),
            (ReplicaTime(Replica(P0, NODES[0], 1, True, None), None, None, "it keeps no journal"),),
            None,
            None,
            0,
        ),
        author=None,
        author_trouble="no journal has it",
        refusals=None,
        refusals_trouble="partition 0 has no server now",
    )
    text = said(unknown)
    for part in (
        "transaction 5: unknown whether it is committed: partition 0 has no server now; 1 of 3",
        "author      client 7, whose name is unknown: no journal has it",
        "attempts    unknown: only its author's client counts attempts",
        "durable     not recorded",
        "s1:1  has it, read and checked now; time not recorded: it keeps no journal",
        "s2:1  unknown: no answer from s2:2 in 5 s; time not recorded",
        "s3:1  DIFFERS: it is another record",
        "refusals    unknown: partition 0 has no server now",
    ):
        assert part in text
    values = as_values(unknown)
    assert (values["committed"], values["author"], values["refusals"]) == (None, None, None)


def test_a_clock_that_was_set_back_and_copies_that_came_later_are_told() -> None:
    back = replace(KNOWN.times.replicas[0], interval=INTERVAL._replace(clock_went_back=True))
    apart = replace(KNOWN.times, replicas=(back,), apart_milliseconds=2500)
    text = said(replace(KNOWN, times=apart))
    assert "(its clock was set back later)" in text
    assert "the times of the copies are 2.5 s apart" in text


def test_a_transaction_that_is_not_there_yet_is_told_with_the_end_of_the_log() -> None:
    missing = tuple(Copy(node, CopyStanding.MISSING, "its log ends before") for node in NODES)
    text = said(replace(KNOWN, record=None, transaction_id=TransactionId(10), copies=missing))
    assert "there is none; the partition ends with transaction 9" in text
    assert "s1:1  does not have it: its log ends before" in text


def test_a_server_that_knows_an_older_end_of_the_log_is_not_believed_alone() -> None:
    beyond = replace(KNOWN, transaction_id=TransactionId(10))
    assert beyond.is_committed is None, "the copies have it"
    assert "the partition's server knows the log up to transaction 9" in said(beyond)
    assert as_values(beyond)["committed"] is None
    missing, silent = (
        Copy(NODES[0], CopyStanding.MISSING, "its log ends before"),
        Copy(NODES[1], CopyStanding.UNKNOWN, "no answer"),
    )
    assert replace(beyond, copies=(missing, silent, silent)).is_committed is None
    assert replace(beyond, copies=(missing, missing, silent)).is_committed is False
    assert replace(beyond, copies=()).is_committed is None


@pytest.mark.parametrize("target", ["x", "1", "1:2:3", "-1:5", f"0:{2**63}", f"{2**31}:1:1:1"])
def test_a_target_that_is_none_is_refused(target: str) -> None:
    done = CliRunner().invoke(command, ["explain", "--cluster", "127.0.0.1:1", "--", target])
    assert (done.exit_code, "expected partition:transaction" in done.output) == (2, True)


@pytest.mark.processes
def test_a_transaction_of_a_running_cluster_is_explained(cluster: RunningCluster) -> None:
    where = ("--cluster", cluster.coordinator)
    lock = PartitionLocalLock("account", 7)
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks(), name="orders") as client:
        written = client.append(0, b"paid", write_locks=[lock])

        def copies() -> list[str]:
            """Two of three commit it; the third one may have it a moment later."""
            said = run_tool("explain", f"0:{written}", *where, "--json").json
            return [each["copy"] for each in said["copies"]]

        wait_until(lambda: copies() == ["same"] * 3, "a copy is missing")
        done = run_tool("explain", f"0:{written}", *where, "--json")
        assert done.code == 0, done.err
        found = done.json
        assert found["committed"] is True
        assert found["author"]["name"] == "orders"
        assert found["data_bytes"] == 4
        request_id = ":".join(map(str, found["request_id"].values()))

        def is_noted() -> bool:
            """Nobody can name a client that has gone before the nodes have noted it."""
            noted = run_tool("explain", f"0:{written}", *where, "--json").out
            author = json.loads(noted)["author"]
            return author is not None and author["source"].startswith("a journal")

    wait_until(is_noted, "no journal has the client's name after it has gone")
    by_request = run_tool("explain", request_id, *where)
    assert by_request.out.startswith(f"partition 0, transaction {written}: committed")
    beyond = run_tool("explain", "0:99999", *where)
    assert (beyond.code, "there is none; the partition ends with" in beyond.out) == (
        1,
        True,
    )
    client_id = request_id.partition(":")[0]
    never = run_tool("explain", f"{client_id}:1:0:999999", *where)
    assert (never.code, never.out) == (1, "not in the log, and never will be\n")
    none = run_tool("explain", "9:0", *where)
    assert (none.code, "there is no partition 9" in none.err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((), "give one of TARGET, --lock and --context"),
        (("0:1", "--lock", "account:7"), "give one of TARGET, --lock and --context"),
        (("0:1", "--partition", "0"), "--partition belongs to --lock"),
        (("--lock", "account"), "expected a lock as NAME:NUMBER"),
        (("--context", "nothing"), "--context names no transaction"),
    ],
)
def test_a_wrong_call_is_refused(arguments: tuple[str, ...], fault: str) -> None:
    done = CliRunner().invoke(command, ["explain", "--cluster", "127.0.0.1:1", *arguments])
    assert (done.exit_code, fault in done.output) == (2, True)


@pytest.mark.long
@pytest.mark.processes
def test_a_node_that_does_not_answer_is_unknown_and_its_copy_is_not_called_good(
    cluster: RunningCluster,
) -> None:
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        written = client.append(1, b"paid")
    pid = cluster.pid("storage-2")
    os.kill(pid, signal.SIGSTOP)
    try:
        done = run_tool("explain", f"1:{written}", "--cluster", cluster.coordinator, "--json")
    finally:
        os.kill(pid, signal.SIGCONT)
    found = done.json
    assert found["committed"] is True
    assert sorted(each["copy"] for each in found["copies"]) == ["same", "same", "unknown"]

    def is_known_again() -> bool:
        again = run_tool("explain", f"1:{written}", "--cluster", cluster.coordinator, "--json")
        return [each["copy"] for each in again.json["copies"]] == ["same"] * 3

    wait_until(is_known_again, "the copy of the node that is back stays unknown")
