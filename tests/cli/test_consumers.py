"""`waltz consumers` against a running cluster: who is connected, how far, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import waltz
from tests.client.applications import Recorder
from tests.clusters import RunningCluster, Said, run_tool, wait_until
from waltz.cli.consumers import show_named
from waltz.operators.named_consumers_shell import ConsumersView, NamedConsumer
from waltz.types import Address

pytestmark = pytest.mark.processes


class Consumers:
    def __init__(self, cluster: RunningCluster) -> None:
        self.address = cluster.coordinator

    def run(self, command: str, *arguments: str) -> Said:
        return run_tool("consumers", command, *arguments, "--cluster", self.address)

    def shown(self, name: str) -> Any:
        said = self.run("show", name, "--json")
        return json.loads(said.out) if said.code == 0 else {"partitions": [], "clients": []}

    def until(self, name: str, is_right: Callable[[Any], bool]) -> Any:
        last: list[Any] = []

        def is_there() -> bool:
            last[:] = [self.shown(name)]
            return is_right(last[0])

        try:
            wait_until(is_there, f"{name} is not as expected")
        except AssertionError as error:
            raise AssertionError(f"{error}: {last[0]}") from None
        return last[0]


@pytest.fixture
def consumers(cluster: RunningCluster) -> Consumers:
    return Consumers(cluster)


def has_mark(mark: int, *, told_now: bool) -> Callable[[Any], bool]:
    return lambda found: any(
        (each["partition"], each["mark"], each["told_now"]) == (0, mark, told_now)
        for each in found["partitions"]
    )


def test_a_consumer_is_shown_while_it_runs_and_afterwards(consumers: Consumers) -> None:
    with waltz.open_client(
        consumers.address, Recorder(), name="orders", instance="orders-7", is_consumer=True
    ) as client:
        mark = client.append(0, b"x")
        found = consumers.until("orders", has_mark(mark, told_now=True))
        (shown,) = found["clients"]
        assert (shown["instance"], shown["client_id"]) == ("orders-7", client.client_id)
        assert shown["program"]
        assert shown["version"]
        assert shown["connected"]
        assert found["lag_seconds"] == {"least": 0.0, "most": 0.0}
        assert found["servers_not_asked"] == {}
        text = consumers.run("show", "orders").out
        assert text.startswith("consumer orders, 1 connected")
        assert "told now" in text
        assert "orders-7" in text
        (row,) = [line for line in consumers.run("list").out.splitlines() if "orders" in line]
        assert row.split()[:4] == ["orders", "1", "connected", "2"]
        left_at = datetime.now(UTC)
        left_at = left_at.replace(
            microsecond=left_at.microsecond // 1000 * 1000
        )  # as marks have it

    def has_left(found: Any) -> bool:
        is_gone = not found["clients"] and has_mark(mark, told_now=False)(found)
        return is_gone and datetime.fromisoformat(found["last_kept"]) >= left_at

    assert consumers.until("orders", has_left)["lag_transactions"] == 0
    assert "not connected" in consumers.run("list").out
    assert [each["name"] for each in consumers.run("list", "--json").json["consumers"]] == [
        "orders"
    ]

    assert consumers.run("forget", "orders", "--yes").code == 0
    assert consumers.run("list", "--json").json["consumers"] == []
    for command in (("show", "orders"), ("forget", "orders", "--yes")):
        said = consumers.run(*command)
        assert said.code == 1
        assert "orders" in said.err


def test_everybody_is_shown_if_asked_for(consumers: Consumers) -> None:
    with waltz.open_client(consumers.address, Recorder(), name="shop") as client:
        mark = client.append(0, b"x")
        consumers.until("shop", has_mark(mark, told_now=True))
        assert "shop" in consumers.run("list", "--all").out
        assert "shop" not in consumers.run("list").out


def test_a_question_is_asked_before_marks_are_forgotten(consumers: Consumers) -> None:
    said = run_tool("consumers", "forget", "x", "--cluster", consumers.address, stdin="n\n")
    assert said.code == 1
    assert "delete the marks that are kept of 'x'?" in said.out


@pytest.mark.parametrize("name", ["", "a/b", "ä", "a b"])
def test_a_consumer_needs_a_name_that_a_node_can_have(name: str, consumers: Consumers) -> None:
    with pytest.raises(waltz.ConfigurationError, match="name"):
        waltz.open_client(consumers.address, Recorder(), name=name, is_consumer=True)


def test_a_name_that_a_silent_server_may_know_is_not_said_to_be_unknown_to_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    silent = ConsumersView((), None, {Address("h", 1): "refused"}, False)
    with pytest.raises(SystemExit) as ended:
        show_named("orders", silent, as_json=False)
    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert "server h:1 could not be asked: refused" in said
    assert "whether a client of that name is connected is unknown" in said
    with pytest.raises(waltz.NotFoundError, match="no client of that name is connected"):
        show_named("orders", ConsumersView((), 0.1, {}, True), as_json=False)


def test_the_age_of_answers_is_told_if_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    away = {Address("h", 1): "refused"}
    with pytest.raises(SystemExit):
        show_named(
            "a", ConsumersView((NamedConsumer("a", (), ()),), None, away, False), as_json=False
        )
    assert "s old" not in capsys.readouterr().out
