"""The options that every bridge has, whatever it delivers to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bridge.kafka_kills import kafka_configuration
from tests.bridge.kills import configuration
from tests.clusters import run_tool
from waltz.cli.bridge_http import bridge_to_http
from waltz.cli.bridge_kafka import bridge_to_kafka


def test_all_bridges_have_the_same_parameters() -> None:
    names = [
        [each.name for each in command.params] for command in (bridge_to_http, bridge_to_kafka)
    ]
    assert names[0] == names[1]
    assert {"file", "once", "check", "as_json", "end_with_stdin"} <= set(names[0])


@pytest.mark.parametrize("kind", ["http", "kafka"])
def test_a_check_prints_what_would_be_in_force_with_its_source(tmp_path: Path, kind: str) -> None:
    file = (
        configuration(tmp_path, "h:1", "https://hooks.example/in")
        if kind == "http"
        else kafka_configuration(tmp_path, "h:1", "localhost:9092", "t")
    )
    said = run_tool("bridge", kind, file, "--check")
    assert said.code == 0, said.err
    assert f"bridge.cluster: h:1  # {file}" in said.out
    assert "bridge.count: 500  # default" in said.out
    other = {"http": "kafka", "kafka": "http"}[kind]
    said = run_tool("bridge", other, file, "--check")
    assert (said.code, "is missing" in said.err) == (1, True), "the file is that of another kind"
