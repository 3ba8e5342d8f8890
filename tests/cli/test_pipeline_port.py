"""The HTTP port of a pipeline, asked over HTTP while the thread that runs it is busy."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from waltz.cli.pipeline import pipeline
from waltz.cli.pipeline_port import served
from waltz.errors import ConfigurationError
from waltz.spark.followed_metrics import LastVerify
from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.pipelines.watch import BatchSeen, PipelineWatch
from waltz.types import Address, PartitionId, TransactionId


def get(url: str, path: str, accept: str = "text/plain") -> tuple[int, str]:
    request = urllib.request.Request(f"{url}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels.get(label, "") for label in ("part", "partition"))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_a_scraper_is_told_what_is_known_and_nothing_else() -> None:
    watch = PipelineWatch(PipelineDefinition("tables", "127.0.0.1:1", Path("/data/t.db")), 30.0)
    with served(Address("127.0.0.1", 0), watch.state) as url:
        found = samples(get(url, "/metrics")[1])
        assert found["waltz_pipeline_transactions_total", "", ""] == 0
        assert found["waltz_pipeline_every_seconds", "", ""] == 30
        names = {name for name, *_ in found}
        for unknown in (
            "verified_equal",
            "verified_timestamp_seconds",
            "log_asked_timestamp_seconds",
            "lag_transactions",
            "written_bytes_total",
        ):
            assert f"waltz_pipeline_{unknown}" not in names
        part = PartitionId(1)
        watch.log_has({part: TransactionId(50)})
        watch.took_in(BatchSeen({part: TransactionId(40)}, 40, 0, None, {"read": 2.0}))
        found = samples(get(url, "/metrics")[1])
        assert found["waltz_pipeline_transactions_total", "", ""] == 40
        assert found["waltz_pipeline_taken_in_transactions", "", "1"] == 40
        assert found["waltz_pipeline_lag_transactions", "", "1"] == 10
        assert found["waltz_pipeline_batch_seconds_sum", "read", ""] == 2.0
        assert get(url, "/live") == (200, "live\n")
        status, body = get(url, "/health")
        assert (status, json.loads(body)["partitions"]["1"]["lag_transactions"]) == (200, 10)
        watch.verify_is(LastVerify(1_000, 40, 1))
        status, body = get(url, "/health")
        assert (status, json.loads(body)["last_verify"]["equal"]) == (503, False)
        assert samples(get(url, "/metrics")[1])["waltz_pipeline_verified_equal", "", ""] == 0
        taken = Address.parse(url.removeprefix("http://"))
        with pytest.raises(ConfigurationError), served(taken, watch.state):
            pass
    with pytest.raises(urllib.error.URLError):
        get(url, "/live")


def test_a_port_without_a_pipeline_that_follows_is_refused(tmp_path: Path) -> None:
    definition = tmp_path / "archive.yaml"
    definition.write_text("pipeline: archive\ncluster: 127.0.0.1:1\ntarget: archive\n")
    audit = tmp_path / "audit.yaml"
    audit.write_text("pipeline: audit\ncluster: 127.0.0.1:1\ntarget: audit.json\n")
    port = ("--http-address", "127.0.0.1:1")
    for arguments in ((str(definition), *port), (str(audit), *port, "--every", "1")):
        refused = CliRunner().invoke(pipeline, ["run", *arguments])
        assert str(refused.exception) == (
            "--http-address is for a pipeline that keeps something and runs with --every"
        )
