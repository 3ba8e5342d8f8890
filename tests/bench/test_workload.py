"""Workloads as data: the file, its faults, and those that come with the program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.results import workload
from waltz.bench.workload import VERBS, Workload, choose, read_workloads
from waltz.errors import ConfigurationError
from waltz.wire.client_protocol import CLIENT_CODEC


def read(tmp_path: Path, text: str) -> dict[str, Workload]:
    file = tmp_path / "workloads.yaml"
    file.write_text(text)
    return read_workloads(file)


def test_a_file_gives_workloads_by_name_in_its_order(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        second: {verb: submit, window: 8, rate: 100}
        first: {like: second, data_bytes: 7}
        """,
    )
    assert found == {
        "second": Workload(name="second", verb="submit", window=8, rate=100),
        "first": Workload(name="first", verb="submit", window=8, rate=100, data_bytes=7),
    }


def test_one_workload_is_made_per_combination_of_values(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        some: {verb: submit, window: 8, for: {partitions: [1, 2], data_bytes: [100, 512]}}
        slow: {like: some, slow_sync_seconds: 0.05}
        """,
    )
    assert list(found) == [
        *("some-1-100", "some-1-512", "some-2-100", "some-2-512"),
        *("slow-1-100", "slow-1-512", "slow-2-100", "slow-2-512"),
    ]
    assert (found["some-2-512"].partitions, found["some-2-512"].data_bytes) == (2, 512)
    assert found["slow-1-100"].slow_sync_seconds == 0.05


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected names"),
        ("[1, 2]", "expected names"),
        ("a: {verb: [", "is not YAML"),
        ("a: 7", "expected keys and values"),
        ("a: {verb: fly}", "verb is 'fly'"),
        ("a: {}", "no verb"),
        ("a: {verb: submit, protocol: -1}", "protocol is -1; expected a version"),
        ("a: {verb: submit, protocol: x}", "protocol is 'x'; expected a version"),
        ("a: {verb: submit, protocol: 0, read_locks: 1}", "read_locks need protocol 1"),
        ("a: {verb: read, prefill: 9, protocol: 4}", "read has no protocol"),
        ("a: {like: b}", "no workload 'b' before this one"),
        ("a: {verb: submit, name: b}", "unknown key 'name'"),
        ("a: {verb: submit, weight: 1}", "unknown key 'weight'"),
        ("a: {verb: submit, for: {weight: [1]}}", "unknown key 'weight' in for"),
        ("a: {verb: submit, for: {rate: 1}}", "keys with lists"),
        ("a: {verb: submit, window: 7}", "expected a multiple of the 4 partitions"),
        ("a: {verb: submit, window: many}", "window is 'many'"),
        ("a: {verb: submit, clients: 0}", "clients is 0; expected 1 to 64"),
        ("a: {verb: submit, rate: 0}", "rate is 0"),
        ("a: {verb: submit, keys: 0}", "keys is 0"),
        ("a: {verb: append}", "expected 1, since append waits"),
        ("a: {verb: feed}", "needs something to read"),
    ],
)
def test_a_fault_of_the_file_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_workloads(tmp_path / "none.yaml")


def test_patterns_choose_each_once_in_the_order_of_the_file() -> None:
    found = {name: workload(name=name) for name in ("one", "two", "three")}
    assert [each.name for each in choose(found, ["t*", "one", "two"])] == ["one", "two", "three"]
    with pytest.raises(ConfigurationError, match="no workload 'f\\*'; there are: one, two, three"):
        choose(found, ["f*"])


def test_what_comes_with_the_program_covers_every_verb_and_the_original_s_rows() -> None:
    found = read_workloads()
    assert {each.verb for each in found.values()} == set(VERBS)
    original = [each for name, each in found.items() if name.startswith("original-")]
    rows = {(each.partitions, each.clients, each.window) for each in original if each.is_writing}
    assert rows == {
        (1, 1, 1), (1, 1, 5), (1, 4, 5), (1, 1, 64), (4, 1, 20), (4, 4, 20), (4, 1, 256),
    }  # fmt: skip
    assert {each.data_bytes for each in original} == {100, 512, 4096}


def test_rows_with_tls_or_a_slow_replica_differ_from_their_models_in_nothing_else() -> None:
    found = read_workloads()
    rows = {name: each for name, each in found.items() if each.tls or each.slow_sync_seconds}
    assert {"tls-one-at-a-time", "tls-submit-locks"} <= rows.keys()
    assert {"slow-replica-one-at-a-time", "slow-replica"} <= rows.keys()
    named = {"slow-replica": "submit-locks"}
    for name, each in rows.items():
        model = found[named.get(name) or name.removeprefix("tls-").removeprefix("slow-replica-")]
        assert each == replace(
            model, name=name, about=each.about, tls=each.tls,
            slow_sync_seconds=each.slow_sync_seconds,
        )  # fmt: skip


def test_commit_to_apply_is_measured_in_one_partition_and_in_four() -> None:
    found = read_workloads()
    one, four = found["commit-to-apply-1-partition"], found["commit-to-apply"]
    assert (one.partitions, four.partitions) == (1, 4)
    assert one.rate == four.rate == 10_000
    assert one.consumers == four.consumers == 1


def test_a_short_one_warms_up_for_a_fifth_of_a_round_at_most() -> None:
    short = workload(warm_up_seconds=2.0).short(1.0, 3)
    assert (short.duration_seconds, short.warm_up_seconds, short.rounds) == (1.0, 0.2, 3)
    assert workload(warm_up_seconds=0.0).short(60.0, 1).warm_up_seconds == 0.0


def test_clients_are_opened_with_the_version_that_a_workload_wants() -> None:
    assert workload("submit").client_options == {}
    limited = replace(workload("submit"), protocol=0)
    assert limited.client_options == {"protocol_version_max": 0}
    by_version = choose(read_workloads(), ["versions-*"])
    assert [each.protocol for each in by_version] == [*CLIENT_CODEC.versions]
