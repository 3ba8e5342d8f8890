"""The processes that Spark starts for each query import no more of Waltz than they work with."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = (
    "pyarrow", "numpy", "asyncio", "pandas", "pyarrow.compute", "pyarrow.parquet", "sqlite3",
    "yaml",
)  # fmt: skip
"""Modules of others that cost 10 ms of processor time or more."""

PROGRAM = """
import json, sys
from waltz.spark.data_source import WaltzDataSource
source = WaltzDataSource({"cluster": "127.0.0.1:1"})
%s
print(json.dumps(sorted(sys.modules)))
"""

NOT_NEEDED = (
    "waltz.client.engine_shell",
    "waltz.operators",
    "waltz.storage",
    "waltz.archive",
    "waltz.configuration",
    "waltz.spark.archive_files",
    "waltz.spark.delta_archive",
    "waltz.spark.pipelines",
    "waltz.spark.segment_reader",
    "waltz.spark.writer",
)
"""Modules, or their rooms, that a read of the log alone does not work with."""


def imported_by(use: str) -> list[str]:
    """Return the modules of a process that has used a source in this way."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % use], capture_output=True, text=True, check=True
    )
    modules: list[str] = json.loads(done.stdout)
    return modules


def ours(modules: list[str]) -> list[str]:
    return [each for each in modules if each.split(".")[0] == "waltz"]


def test_a_process_that_tells_the_columns_imports_neither_arrow_nor_a_reader() -> None:
    modules = imported_by("source.schema()")
    assert set(HEAVY).isdisjoint(modules)
    assert len(ours(modules)) <= 10


@pytest.mark.parametrize("kind", ["reader", "streamReader"])
def test_a_process_that_reads_imports_nothing_that_writes_archives_or_inspects(kind: str) -> None:
    modules = imported_by(f"source.{kind}(source.schema())")
    assert set(HEAVY).intersection(modules) == {"pyarrow", "numpy", "asyncio"}
    assert [each for each in modules if each.startswith(NOT_NEEDED)] == []
    assert len(ours(modules)) <= 75


def test_rows_are_made_without_pandas() -> None:
    """`pyarrow.array` of a numpy array would import it."""
    modules = imported_by(
        "import numpy as np\n"
        "from waltz import BlockData, TransactionColumns\n"
        "from waltz.spark.schema import arrow_schema, record_batch\n"
        "data = BlockData(b'0123456789abcdef', np.array([0]), np.array([16]))\n"
        "columns = TransactionColumns(0, bytes(16), np.zeros(1, np.int32), data)\n"
        "assert len(record_batch(0, columns, arrow_schema(source.schema()))) == 1"
    )
    assert set(HEAVY).intersection(modules) == {"pyarrow", "numpy", "pyarrow.compute"}
