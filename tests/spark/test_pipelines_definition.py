"""The file of a pipeline: read whole, and a mistake in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz.errors import ConfigurationError
from waltz.spark.pipelines.definition import PipelineDefinition, parse_definition
from waltz.types import TlsSettings

HOME = Path("/etc/waltz")
LEAST = "pipeline: archive\ncluster: 127.0.0.1:7100\ntarget: archive\n"


def test_three_keys_are_enough() -> None:
    assert parse_definition(LEAST, directory=HOME) == PipelineDefinition(
        "archive", "127.0.0.1:7100", HOME / "archive"
    )


def test_everything_else_may_be_said() -> None:
    more = (
        "partitions: 0-1,7\ntls: {ca: ca.pem, cert: /a.pem, key: /b.pem}\n"
        "spark: {spark.master: 'local[2]', spark.ui.enabled: false}\n"
    )
    found = parse_definition(LEAST + more, directory=HOME)
    assert found.partitions == (0, 1, 7)
    assert found.tls == TlsSettings("/a.pem", "/b.pem", authorities="/etc/waltz/ca.pem")
    assert found.spark == {"spark.master": "local[2]", "spark.ui.enabled": "false"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("pipeline: [", "not YAML"),
        ("", "the file is None; expected keys"),
        ("cluster: h:1\ntarget: t", "pipeline is missing"),
        ("pipeline: archive\ntarget: t", "cluster is missing"),
        (LEAST.replace("archive\nc", "poem\nc"), "pipeline is 'poem'; expected one of archive"),
        (LEAST + "destination: x", "the file has the unknown key 'destination'"),
        (LEAST + "tls: {pem: x}", "tls has the unknown key 'pem'"),
        (LEAST + "spark: 7", "spark is 7; expected keys"),
        (LEAST.replace("127.0.0.1:7100", "nowhere"), "cluster: "),
    ],
)
def test_a_mistake_is_named(text: str, fault: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^WALTZ-1007 {fault}"):
        parse_definition(text, directory=HOME)
