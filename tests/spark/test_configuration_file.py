"""The tools' own file says where the cluster is and how it is reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz.errors import ConfigurationError
from waltz.spark.configuration_file import read_configuration_file
from waltz.spark.spark_options import parse_options, parse_sink_options
from waltz.types import TlsSettings

FILE = """\
zookeeper.connectString: a:2181,b:2181
cluster.root: /prod/waltz
ssl:
  keyStore.location: /etc/waltz/me.pem
  trustStore.location: /etc/waltz/ca.pem
"""
TLS = TlsSettings("/etc/waltz/me.pem", authorities="/etc/waltz/ca.pem")


def test_sources_and_sinks_are_led_to_the_cluster(tmp_path: Path) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text(FILE)
    cluster, tls = read_configuration_file(str(path))
    assert cluster.startswith("zookeeper://a:2181,b:2181/prod/waltz")
    assert tls == TLS
    read = parse_options({"configFile": str(path), "partitions": "1"})
    assert (read.cluster, read.tls) == (cluster, TLS)
    sink = parse_sink_options({"configfile": str(path)}, is_stream=True)
    assert (sink.cluster, sink.tls) == (cluster, TLS)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "No such file"),
        ("a: b: c", "line 1"),
        ("cluster.root: /waltz", "coordinator"),
        ("coordinator.address: nowhere", "nowhere"),
    ],
)
def test_a_file_that_does_not_say_it_is_refused(
    tmp_path: Path, content: str | None, fault: str
) -> None:
    path = tmp_path / "tools.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=f"(?s)^WALTZ-1003 option configFile: .*{fault}"):
        read_configuration_file(str(path))


@pytest.mark.parametrize("other", ["cluster", "tlsCa", "path"])
def test_what_the_file_says_is_not_said_again(tmp_path: Path, other: str) -> None:
    path = tmp_path / "tools.yaml"
    path.write_text(FILE)
    with pytest.raises(
        ConfigurationError, match=f"^WALTZ-1003 options {other} and configFile exclude"
    ):
        parse_options({"configFile": str(path), other: "127.0.0.1:7100"})
