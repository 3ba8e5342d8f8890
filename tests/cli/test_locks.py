"""`waltz locks` against a running cluster."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import waltz
from tests.clusters import RunningCluster, run_tool, wait_until
from waltz.cli.locks import lock_text, print_hottest
from waltz.client.transaction import PartitionLocalLock
from waltz.operators.hot_locks_shell import HottestLocks
from waltz.types import PartitionId
from waltz.wire.report_protocol import RefusalsKept

ACCOUNT = PartitionLocalLock("account", 7)


class Late(waltz.WaltzClientCallbacks):
    """Applies nothing until it is told to."""

    def __init__(self) -> None:
        self.may_apply = threading.Event()
        self.mark = -1

    def get_client_high_water_mark(self, partition_id: int) -> int:
        return self.mark

    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        self.may_apply.wait()
        self.mark = transaction.transaction_id

    def uncaught_exception(
        self, partition_id: int, transaction_id: int, error: BaseException
    ) -> None: ...


@pytest.mark.processes
def test_a_refused_append_is_shown_with_its_lock_and_its_winner(cluster: RunningCluster) -> None:
    where = ("--cluster", cluster.coordinator, "--partition", "0")
    wait_until(lambda: run_tool("locks", "top", *where).code == 0, "it has no server")
    nothing = run_tool("locks", "top", *where)
    assert nothing.out == "partition 0: no refusals since its server has opened it\n"
    late = Late()
    with (
        waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as first,
        waltz.open_client(cluster.coordinator, late) as second,
        ThreadPoolExecutor() as pool,
    ):
        won = first.append(0, b"first", write_locks=[ACCOUNT])
        refused = pool.submit(second.append, 0, b"second", write_locks=[ACCOUNT])

        def is_counted() -> bool:
            return bool(run_tool("locks", "top", *where, "--json").json["refusals"])

        wait_until(is_counted, "no refusal is counted")
        late.may_apply.set()
        assert refused.result() > won
    shown = run_tool("locks", "top", *where, "--name", "account")
    assert "account:7" in shown.out
    hot = run_tool("locks", "top", *where, "--json").json
    (lock,) = hot["locks"]
    assert lock["lock_hash"] == ACCOUNT.hash
    assert (lock["newest_winner"], lock["estimated"]) == (won, 0)
    shown_over_all_partitions(cluster, lock)
    by_lock = ("locks", "refusals", *where, "--lock", "account:7")
    found = run_tool(*by_lock, "--json").json
    assert found["counted"] == hot["counted"] == len(found["refused"]) == lock["refusals"]
    assert {each["winner"] for each in found["refused"]} == {won}
    assert all(each["exact"] and each["lock"] == "account:7" for each in found["refused"])
    assert "wrote it" in run_tool(*by_lock, "--winner", str(won)).out
    request_id = ":".join(map(str, found["refused"][0]["request_id"].values()))
    of_one = run_tool("locks", "refusals", *where, "--request-id", request_id, "--json")
    assert of_one.json["refused"]
    none = run_tool("locks", "refusals", *where, "--winner", "999999", "--json")
    assert none.json["refused"] == []
    explained_by_lock_and_by_context(cluster, won, found["refused"][0]["request_id"])


def shown_over_all_partitions(cluster: RunningCluster, lock: dict[str, int]) -> None:
    """`waltz locks top` without a partition: the same lock, with its partition."""
    everywhere = ("locks", "top", "--cluster", cluster.coordinator)
    done = run_tool(*everywhere, "--json")
    assert done.code == 0, done.err
    found = done.json
    assert (found["partitions_asked"], found["partitions_unknown"]) == (2, [])
    (hottest,) = [each for each in found["locks"] if each["partition"] == 0]
    assert {**hottest, "newest_age_seconds": 0} == {
        **lock, "newest_age_seconds": 0, "partition": 0,
        "oldest_age_seconds": hottest["oldest_age_seconds"],
    }  # fmt: skip
    text = run_tool(*everywhere, "--name", "account")
    assert "2 of 2 partitions asked: " in text.out
    assert "account:7" in text.out
    assert text.err == ""


def explained_by_lock_and_by_context(
    cluster: RunningCluster, won: int, loser: dict[str, int]
) -> None:
    """`waltz explain` of the lock, and of a line that names winner and loser."""
    where = ("--cluster", cluster.coordinator)
    done = run_tool("explain", "--lock", "account:7", "--partition", "0", *where, "--json")
    assert done.code == 0, done.err
    (found,) = done.json["partitions"]
    assert (found["winner"], found["exact"]) == (won, True)
    assert found["explanation"]["transaction_id"] == won
    assert (found["explanation"]["committed"], found["explanation"]["attempts"]) == (True, None)
    text = run_tool("explain", "--lock", "account:7", *where).out
    assert f"set by transaction {won} when it refused an append" in text
    assert f"partition 0, transaction {won}: committed" in text
    nobody = run_tool("explain", "--lock", "account:8", *where)
    assert (nobody.code, "unknown who set it: no refusal that the" in nobody.out) == (
        3,
        True,
    )
    line = f"partition=0 transaction={won} refused {':'.join(map(str, loser.values()))}"
    both = run_tool("explain", "--context", line, *where)
    assert f"partition 0, transaction {won}: committed" in both.out
    assert "not in the log, and never will be" in both.out
    assert both.code == 1


@pytest.mark.processes
def test_a_partition_that_does_not_exist_is_refused(cluster: RunningCluster) -> None:
    done = run_tool("locks", "top", "--cluster", cluster.coordinator, "--partition", "2")
    assert done.code == 1
    assert "there is no partition 2; expected 0 to 1" in done.err


def test_locks_are_named_where_a_name_is_given() -> None:
    assert lock_text(ACCOUNT.hash, []) == f"hash {ACCOUNT.hash & 0xFFFFFFFF:08x}"
    assert lock_text(ACCOUNT.hash, ["account"]) == "account:7"
    both = lock_text(ACCOUNT.hash, ["account", "user"])
    assert both.startswith("account:7")
    for name, number in (part.split(":") for part in both.split(" or ")):
        assert PartitionLocalLock(name, int(number)).hash == ACCOUNT.hash


def test_nothing_is_said_of_refusals_where_nobody_could_be_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    silent = HottestLocks((), {}, {PartitionId(0): "no server has it now"})
    print_hottest(silent, (), as_json=False)
    said = capsys.readouterr()
    assert said.out == "0 of 1 partitions asked: it is not known what was refused\n"
    assert "partition 0: unknown: no server has it now" in said.err
    print_hottest(silent, (), as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["partitions_asked"], told["refusals"], told["counted"]) == (0, None, None)
    some = HottestLocks((), {PartitionId(1): RefusalsKept(0, 0, -1)}, silent.unasked)
    print_hottest(some, (), as_json=False)
    said = capsys.readouterr()
    assert said.out == "1 of 2 partitions asked: no refusals since their servers have opened them\n"
