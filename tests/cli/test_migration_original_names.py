"""The tables of `waltz migrate check` name what there is."""

from __future__ import annotations

import re

import click

from tests.cli.test_commands import commands_of
from tests.clusters import ROOT
from waltz.cli.commands import waltz
from waltz.cli.metrics_document import SECTIONS
from waltz.cli.migration.original_names import METRICS, TOOLS

PAGE = ROOT / "docs" / "operating" / "migrating.md"
COMMANDS = dict(commands_of(waltz))


def test_every_metric_in_place_of_the_original_s_exists_and_a_missing_one_says_why() -> None:
    known = {each.name for section in SECTIONS.values() for each in section}
    for pair in METRICS:
        assert pair.here in known if pair.here is not None else pair.note, pair
    assert len({pair.original for pair in METRICS}) == len(METRICS)


# After the original's registrations, group by group (MT-01 to MT-24).
OF_CLIENT = "cluster-name client-id num-active-partitions active-partition-ids"
OF_CLIENT_PARTITION = """
    is-mounted is-partition-active high-water-mark num-registered-transactions lock-failure
    transaction-monitor-timeout send-throughput received-throughput on-completion-latency
    on-application-latency
"""
OF_SERVER = """
    feed-cache-miss transaction-cache-miss is-closed cluster-name server-id endpoint
    waltz-server-num-partitions replica-info waltz-version-id
"""
OF_SERVER_PARTITION = """
    transaction successful-append rejected-append response-latency pending-append is-closed
    generation append-queue-size high-water-mark total-real-time-feed-context-added
    total-real-time-feed-context-removed total-catchup-feed-context-added
    total-catchup-feed-context-removed
"""
OF_STORAGE = "waltz-storage-num-partitions waltz-storage-partition-ids waltz-version-id"
OF_STORAGE_PARTITION = """
    append append-latency session-id process-queue-size low-water-mark local-low-water-mark flags
    sequence-number max-transaction-id last-session-info-request set-low-water-mark-request
    truncate-request record-header-request record-request max-transaction-request
    record-header-list-request record-list-request
"""
GROUPS = {
    "waltz-client": OF_CLIENT,
    "waltz-client-stream.partition-N": OF_CLIENT_PARTITION,
    "waltz-client-rpc.partition-N": OF_CLIENT_PARTITION,
    "waltz-server": OF_SERVER,
    "waltz-server.partition-N": OF_SERVER_PARTITION,
    "waltz-storage": OF_STORAGE,
    "waltz-storage.partition-N": OF_STORAGE_PARTITION,
}


def test_every_metric_of_the_original_is_in_the_table_and_nothing_else() -> None:
    wanted = {f"{group}.{name}" for group, names in GROUPS.items() for name in names.split()}
    assert {pair.original for pair in METRICS} == wanted


def test_a_metric_that_a_reason_names_exists() -> None:
    known = {each.name for section in SECTIONS.values() for each in section}
    for pair in METRICS:
        assert set(re.findall(r"waltz_\w+", pair.note)) <= known, pair


def test_the_page_has_the_table() -> None:
    """`python -m tests.cli.test_migration_original_names` prints it."""
    assert "\n".join(metric_rows()) in PAGE.read_text()


def metric_rows() -> list[str]:
    rows = ["| Java Waltz | Prometheus | |", "|---|---|---|"]
    for pair in METRICS:
        here = "" if pair.here is None else f"`{pair.here}`"
        rows.append(f"| `{pair.original}` | {here} | {pair.note} |")
    return rows


def test_every_tool_s_command_exists_and_has_the_options_that_are_named() -> None:
    for pair in TOOLS:
        command = COMMANDS[pair.here]
        options = {
            option
            for parameter in command.params
            if isinstance(parameter, click.Option)
            for option in parameter.opts
        } | {"--help"}
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", pair.options))
        assert named <= options, pair


def test_every_command_of_the_seven_tools_has_one_in_its_place() -> None:
    """TL-02 to TL-10, TL-20 to TL-27, TL-30 to TL-32, TL-50, TL-51, TL-70 to TL-73"""
    found: dict[str, int] = {}
    for pair in TOOLS:
        found[pair.java_class] = found.get(pair.java_class, 0) + 1
    assert found == {
        "ZooKeeperCli": 9, "StorageCli": 8, "ServerCli": 3, "ClusterCli": 2, "ClientCli": 3,
        "DiskCli": 4, "PerformanceCli": 2,
    }  # fmt: skip


if __name__ == "__main__":
    print("\n".join(metric_rows()))
