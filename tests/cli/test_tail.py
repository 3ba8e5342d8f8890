"""`waltz tail` against a running cluster: what it begins with, and the form of its lines."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from tests.clusters import RunningCluster, Said, run_tool, run_waltz, running_cluster
from waltz import TransactionColumns, TransactionId
from waltz.cli.cluster_place import LogPlace
from waltz.cli.nodes import run_loop
from waltz.cli.tail import RowFacts, Style, TimeBounds, print_log, rows_of
from waltz.cli.tail_order import LONG_AGO, NEVER
from waltz.cli.tail_start import LATEST
from waltz.operators.authors import Author
from waltz.types import ClientId, TlsSettings, parse_cluster

RUN = TransactionColumns(
    first_transaction_id=TransactionId(7),
    request_ids=b"".join(number.to_bytes(4, "big") for number in (1, 2, 3, 4, 2**31 - 1, 0, 3, 5)),
    headers=np.array([0, -3], np.int32),
    data=["tö".encode(), b"\xff\x00"],
)


def lines(style: Style, facts: RowFacts | None = None) -> str:
    return "".join(map(style.line, rows_of(3, RUN, facts)))


def test_a_line_has_id_header_and_data() -> None:
    plain = Style(as_json=False, shows_partition=False, shows_request_id=False)
    assert lines(plain) == "7\t0\ttö\n8\t-3\t\\xff\\x00\n"
    all_of_it = Style(as_json=False, shows_partition=True, shows_request_id=True)
    assert lines(all_of_it).splitlines()[0] == "3\t7\t0\t1/2/3/4\ttö"


def test_data_makes_no_line_of_its_own() -> None:
    plain = Style(as_json=False, shows_partition=False, shows_request_id=False)
    told = replace(next(rows_of(3, RUN)), data=b"a\n8\t0\tb\r\x1b[31m")
    assert plain.line(told) == "7\t0\ta\\n8\\t0\\tb\\r\\x1b[31m\n"


def test_json_has_the_request_id_and_loses_no_byte() -> None:
    style = Style(as_json=True, shows_partition=True, shows_request_id=False)
    first, second = (json.loads(line) for line in lines(style).splitlines())
    assert first == {
        "partition": 3,
        "transaction_id": 7,
        "header": 0,
        "request_id": {
            "client_id": 1,
            "generation": 2,
            "partition_id": 3,
            "sequence_number": 4,
        },
        "data": "tö",
    }
    assert second["data_base64"] == "/wA="
    assert second["request_id"]["client_id"] == 2**31 - 1


def test_a_bound_that_is_not_recorded_is_left_out() -> None:
    assert TimeBounds(1_000, NEVER).text() == "from 1970-01-01T00:00:01.000Z"
    assert TimeBounds(LONG_AGO, 1_000).text() == "until 1970-01-01T00:00:01.000Z"


KNOWN = Author(ClientId(1), "orders", "orders-7", "app.py", "", "h:1", "a journal has it")


def test_times_and_authors_come_before_the_data_and_what_is_unknown_is_called_so() -> None:
    facts = RowFacts([TimeBounds(1_000, 2_000), TimeBounds(LONG_AGO, NEVER)], [KNOWN, None])
    plain = Style(as_json=False, shows_partition=False, shows_request_id=False)
    first, second, _ = lines(plain, facts).split("\n")
    times = "1970-01-01T00:00:01.000Z to 1970-01-01T00:00:02.000Z"
    assert first == f"7\t0\t{times}\torders (client 1)\ttö"
    assert second.startswith(f"8\t-3\tnot recorded\tunknown (client {2**31 - 1})\t")
    unordered = replace(next(rows_of(3, RUN, facts)), is_ordered=False)
    assert f"\t~ {times}\t" in plain.line(unordered)
    shown = Style(as_json=True, shows_partition=True, shows_request_id=False)
    one, two = (json.loads(line) for line in lines(shown, facts).splitlines())
    assert (one["not_before"], one["not_after"], one["ordered"]) == (*times.split(" to "), True)
    assert (one["author"]["name"], one["author"]["source"]) == ("orders", "a journal has it")
    assert (two["not_before"], two["not_after"], two["author"]) == (None, None, None)
    assert json.loads(shown.line(unordered))["ordered"] is False


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster with five transactions in partition 0 and two in partition 1."""
    directory: Path = tmp_path_factory.mktemp("tail")
    with running_cluster(directory / "cluster", "--partitions", "2") as cluster:
        for partition, data in (("0", "abcde"), ("1", "xy")):
            where = ("--cluster", cluster.coordinator, "--partition", partition)
            assert run_tool("append", *where, *data).code == 0
        yield cluster


def tail(log: RunningCluster, *arguments: str) -> Said:
    return run_tool("tail", "--cluster", log.coordinator, "--no-follow", *arguments)


@pytest.mark.processes
def test_without_a_partition_all_of_them_are_printed(log: RunningCluster) -> None:
    assert tail(log, "--from", "earliest").out.splitlines() == [
        *(f"0\t{index}\t0\t{data}" for index, data in enumerate("abcde")),
        *(f"1\t{index}\t0\t{data}" for index, data in enumerate("xy")),
    ]


@pytest.mark.processes
def test_the_last_transactions_of_each_partition_are_printed(log: RunningCluster) -> None:
    assert tail(log, "-n", "3").out.split() == (
        [
            "0",
            "2",
            "0",
            "c",
            "0",
            "3",
            "0",
            "d",
            "0",
            "4",
            "0",
            "e",
            "1",
            "0",
            "0",
            "x",
            "1",
            "1",
            "0",
            "y",
        ]
    )
    assert tail(log, "--partition", "0", "-n", "1").out == "4\t0\te\n"
    assert tail(log, "-n", "0").out == ""


@pytest.mark.processes
def test_a_start_beyond_the_log_is_an_error_that_names_its_end(log: RunningCluster) -> None:
    done = tail(log, "--partition", "0", "--from", "100")
    assert done.code == 1
    assert done.err == "partition 0 ends with transaction 4; there is none from 100 on"
    assert tail(log, "--partition", "0", "--from", "5").code == 0


@pytest.mark.processes
def test_all_partitions_are_followed_at_once_until_ctrl_c(log: RunningCluster) -> None:
    following = subprocess.Popen(
        [
            *(sys.executable, "-m", "waltz.cli.main", "tail", "--cluster", log.coordinator),
            *("-n", "1", "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    seen: dict[int, list[str]] = defaultdict(list)
    for line in following.stdout:
        found = json.loads(line)
        seen[found["partition"]].append(found["data"])
        if len(seen) == 2:
            break
    assert seen == {0: ["e"], 1: ["y"]}
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=60)
    assert (following.returncode, said.strip()) == (130, "")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--from", "yesterday"), "'yesterday'; expected earliest, latest or a transaction ID"),
        (("--from", "9" * 40), "expected earliest, latest or a transaction ID"),
        (("--from", "2026-11-24T10:00"), "has no time zone; add Z for UTC, or +02:00"),
        (("--from", "2990-01-01T00:00Z"), "is in the future by this machine's clock"),
        (("--from", "999999999d"), "is before any calendar"),
        (("-n", "-1"), "-1 is not in the range"),
    ],
)
def test_a_wrong_call_is_refused(arguments: tuple[str, ...], fault: str) -> None:
    done = run_tool("tail", "--cluster", "127.0.0.1:1", *arguments)
    assert done.code == 2
    assert fault in done.err


@pytest.mark.processes
def test_what_all_partitions_hold_comes_in_one_order_with_times_and_authors(
    log: RunningCluster,
) -> None:
    done = tail(log, "--from", "earliest", "--time", "--author", "--json")
    found = [json.loads(line) for line in done.out.splitlines()]
    assert [each["data"] for each in found] == list("abcdexy"), "x and y were appended later"
    first_of_the_other = next(each for each in found if each["partition"] == 1)
    assert first_of_the_other["ordered"] == (
        first_of_the_other["not_before"] >= max(each["not_after"] for each in found[:5])
    )
    assert {each["author"]["recorded"] for each in found} == {True}
    assert all(each["author"]["name"] for each in found)


@pytest.mark.processes
def test_the_last_of_all_partitions_are_the_last_of_the_one_order(log: RunningCluster) -> None:
    """And those of a time or an ID on, if one is given, too."""
    whole = tail(log, "--from", "earliest", "--time").out.splitlines()
    for start, count in (("latest", 3), ("earliest", 1), ("1d", 20), ("1d", 4)):
        done = tail(log, "--from", start, "--time", "-n", str(count))
        assert done.out.splitlines() == whole[-count:]
    of_each = tail(log, "--from", "4", "--partition", "0", "-n", "3")
    assert [line.split("\t")[0] for line in of_each.out.splitlines()] == ["4"]


@pytest.mark.processes
def test_a_time_begins_with_the_first_transaction_that_may_be_of_it(log: RunningCluster) -> None:
    done = tail(log, "--from", "1d")
    assert len(done.out.splitlines()) == 7
    assert done.err.count("it is printed from its first transaction on") == 2
    found = [
        json.loads(line) for line in tail(log, "--time", "--json", "-n", "9").out.split("\n")[:-1]
    ]
    last = next(each for each in reversed(found) if each["partition"] == 0)
    since = tail(log, "--partition", "0", "--from", last["not_after"])
    assert since.out.endswith("4\t0\te\n"), "it may be of that millisecond"
    after = datetime.fromisoformat(last["not_after"]) + timedelta(milliseconds=1)
    beyond = tail(log, "--partition", "0", "--from", after.isoformat())
    assert (beyond.out, beyond.err) == ("", "")
    between = tail(log, "--partition", "0", "--from", last["not_before"])
    assert between.out.endswith("4\t0\te\n")


@pytest.mark.processes
def test_times_are_those_at_which_the_copies_were_made(log: RunningCluster) -> None:
    now = datetime.now(UTC)
    lines = tail(log, "--partition", "0", "--from", "earliest", "--time").out.splitlines()
    assert len(lines) == 5
    for line, data in zip(lines, "abcde", strict=True):
        _, _, times, shown = line.split("\t")
        low, high = map(datetime.fromisoformat, times.split(" to "))
        assert shown == data
        assert low <= high <= now
        assert (high - low).total_seconds() < 60.0
        assert (now - low).total_seconds() < 600.0


class _Disturbed(io.StringIO):
    """Output that is slow to be read: an append comes before its first line is."""

    def __init__(self, log: RunningCluster) -> None:
        super().__init__()
        self._log = log

    def write(self, text: str) -> int:
        if not self.tell():
            where = ("--cluster", self._log.coordinator, "--partition", "1")
            assert run_waltz("append", *where, "z").returncode == 0
        return super().write(text)


@pytest.mark.processes
def test_n_bounds_a_partition_that_grows_before_its_turn(log: RunningCluster) -> None:
    style = Style(as_json=False, shows_partition=True, shows_request_id=False)
    place = LogPlace(parse_cluster(log.coordinator), TlsSettings())
    with redirect_stdout(_Disturbed(log)) as said:
        run_loop(print_log(place, (0, 1), LATEST, 1, style, follow=False))
    assert said.getvalue() == "0\t4\t0\te\n1\t1\t0\ty\n"
