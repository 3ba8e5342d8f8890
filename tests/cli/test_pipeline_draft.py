"""`waltz pipeline init` on a real cluster: the file, and that Spark takes it as it is."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

import waltz
from tests.clusters import run_tool, run_waltz, running_cluster
from tests.spark.short_sessions import SHORT_LIVED
from waltz.cli import pipeline_draft

pytestmark = pytest.mark.processes


@pytest.mark.long
def test_a_draft_is_written_once_and_its_tables_are_made_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "moves.yaml"
    with running_cluster(tmp_path / "drafted", "--partitions", "2") as cluster:

        def init(*more: str) -> tuple[int, str, str]:
            where = ("--cluster", cluster.coordinator)
            said = run_tool("pipeline", "init", str(file), *where, *more)
            return said.code, said.out, said.err

        code, _, text = init()
        assert (code, "has no transactions to look at" in text) == (1, True)
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            for number in range(40):
                data = {"account": number % 4, "amount": number, "order": {"no": number}}
                client.append(number % 2, json.dumps(data).encode(), header=number % 3)
        monkeypatch.setattr(pipeline_draft, "SAMPLE_BYTES_MAX", 0)
        assert len(pipeline_draft.read_samples(cluster.coordinator, waltz.TlsSettings(), 40)) >= 2
        monkeypatch.undo()
        code, text, _ = init("--json", "--transactions", "20")
        assert code == 0
        assert json.loads(text) == {
            "file": str(file),
            "sampled": 20,
            "decodable": 20,
            "fields": {
                "account": "bigint",
                "amount": "bigint",
                "order": "struct<`no`: bigint>",
            },
            "left_out": {},
        }
        code, _, text = init()
        assert (code, "is there already" in text) == (1, True)
        spark = json.dumps({"spark.master": "local[2]", **SHORT_LIVED})
        file.write_text(f"{file.read_text()}spark: {spark}\n")
        done = run_waltz("pipeline", "run", str(file), seconds_max=300)
        assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "tables.db") as database:
        found = database.execute(
            "SELECT account, transactions, amount_sum FROM by_account ORDER BY account"
        ).fetchall()
    assert found == [(n, 10, sum(range(n, 40, 4))) for n in range(4)]
