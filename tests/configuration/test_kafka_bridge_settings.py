"""The configuration of a bridge to Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz.configuration.kafka_bridge_settings import (
    KAFKA_SERVERS,
    RECORD_KEY,
    is_for_kafka,
    kafka_bridge_settings,
    kafka_properties,
    progress_topic,
)
from waltz.configuration.settings import Settings
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError

BASE = "bridge: {cluster: 'h:1', kafka: {topic: orders, name: n}}\n"


def settings(text: str, servers: str = "localhost:9092") -> Settings:
    return kafka_bridge_settings(
        read_yaml(f"{BASE}bridge.kafka.servers: '{servers}'\n{text}", "file")
    )


def test_what_is_needed_is_little() -> None:
    found = settings("", " localhost:9092, [::1]:9093")
    assert found[KAFKA_SERVERS] == "localhost:9092,[::1]:9093"
    assert (progress_topic(found), found[RECORD_KEY]) == ("orders.waltz-progress", "none")
    assert kafka_properties(found) == {"compression.type": "none", "linger.ms": "5"}
    assert is_for_kafka(read_yaml(BASE, "file"))
    assert not is_for_kafka(read_yaml("bridge.url: https://h/", "file"))


@pytest.mark.parametrize(
    "line",
    [
        "enable.idempotence: 'false'",
        "message.max.bytes: 10",
        "topik: a",
        "name: a/b",
        "topic: ''",
        "progressTopic: orders",
        "key: header",
        "timeout: 1",
        "sasl.password: geheim",
    ],
)
def test_what_is_not_known_or_not_fit_is_refused(line: str) -> None:
    name = line.split(":", maxsplit=1)[0]
    text = f"bridge.kafka.{line}\n"
    given = BASE.replace("topic: orders, name: n", "servers: 'localhost:1'")
    wanted = "".join(
        f"bridge.kafka.{each}: {value}\n"
        for each, value in (("topic", "orders"), ("name", "n"))
        if each != name
    )
    with pytest.raises(ConfigurationError, match=rf"bridge\.kafka\.{name}"):
        kafka_bridge_settings(read_yaml(given + wanted + text, "file"))


@pytest.mark.parametrize("servers", ["", "h", "h:0", "h:99999", "h:1,", "kafka://h:1", "h:1/x"])
def test_what_is_no_list_of_servers_is_refused(servers: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bridge\.kafka\.servers"):
        settings("", servers)


def test_transactions_leave_this_machine_unencrypted_only_if_that_is_said() -> None:
    with pytest.raises(ConfigurationError, match=r"security\.protocol is missing"):
        settings("", "localhost:1,kafka.example:1")
    settings("bridge.kafka.security.protocol: plaintext\n", "kafka.example:1")
    for text in ("sasl.username: u", "ssl.ca.location: f", "sasl.passwordFile: f"):
        with pytest.raises(ConfigurationError, match="has no effect with"):
            settings(f"bridge.kafka.{text}\n")


def test_secrets_are_read_from_files(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    lines = (
        "bridge.kafka.security.protocol: sasl_ssl",
        f"bridge.kafka.sasl.passwordFile: {file}",
        f"bridge.kafka.ssl.key.passwordFile: {file}",
    )
    found = settings("\n".join(lines))
    file.write_text("geheim\n")
    properties = kafka_properties(found)
    assert properties["sasl.password"] == properties["ssl.key.password"] == "geheim"
    assert properties["security.protocol"] == "sasl_ssl"
    assert "geheim" not in "".join(found.lines())
    for wrong in (b"", b"\n", b"a\nb\n", b"\xff", b"x" * 70_000):
        file.write_bytes(wrong)
        with pytest.raises(ConfigurationError, match=r"sasl\.passwordFile"):
            kafka_properties(found)
