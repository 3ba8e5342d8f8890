"""The examples have types as a strict application has them, and misuse of the client is found."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.clusters import ROOT

EXAMPLES = ROOT / "examples"

MISUSE = """
import waltz
from waltz import AsyncWaltzClient, LogReader, TransactionBuilder, WaltzClient


class NoExecute(waltz.TransactionContext):
    def partition_id(self, partition_count: int) -> int:
        return 0


class WrongMark(waltz.WaltzClientCallbacks):
    def get_client_high_water_mark(self, partition_id: waltz.PartitionId) -> str:  # wrong
        return "0"


def threads(client: WaltzClient, builder: TransactionBuilder) -> None:
    client.append("0", b"x")  # wrong
    client.append(0, "text")  # wrong
    client.submit(NoExecute())  # wrong
    builder.set_header(1.5)  # wrong
    builder.set_transaction_data(1, waltz.StringSerializer())  # wrong
    builder.set_write_locks(["account"])  # wrong
    client.outcome(7)  # wrong
    client.flush(timeout="1")  # wrong
    at: int = client.outcome(waltz.RequestId(*[]))  # wrong
    print(at)
    client.get_high_water_mark("0")  # wrong
    client.wait_until_applied([0])  # wrong
    client.append_many(0, [b"x"], headers=["1"])  # wrong
    count: str = client.partition_count  # wrong
    print(count)


def readers(reader: LogReader) -> None:
    for columns in reader.read("0", 0, 1):  # wrong
        print(columns.headers)
    for columns in reader.follow(0, 0):
        columns.nothing()  # wrong


async def tasks(client: AsyncWaltzClient) -> None:
    at: int = client.append(0, b"x")  # wrong
    client.flush()  # wrong
    print(at, await client.append(0, b"x") + 1)
"""


@pytest.mark.long
def test_the_examples_are_clean_and_misuse_is_found(tmp_path: Path) -> None:
    """UA-67: by pyright, in its strict mode, with the package as its users have it."""
    wrong = tmp_path / "misuse.py"
    wrong.write_text(MISUSE)
    examples = sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("shop/**/*.py")])
    settings = {
        "include": [*map(str, examples), str(wrong)],
        "extraPaths": [str(ROOT / "src"), str(ROOT)],
        "typeCheckingMode": "strict",
        "reportUnusedCoroutine": "error",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "basedpyright", "-p", str(tmp_path)),
            *("--outputjson", "--pythonpath", sys.executable),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == len(examples) + 1, done.stdout
    found = [
        (Path(each["file"]).name, each["range"]["start"]["line"], each["message"])
        for each in told["generalDiagnostics"]
        if each["severity"] != "information"
    ]
    assert [each for each in found if each[0] != wrong.name] == []
    lines = enumerate(MISUSE.splitlines())
    expected = {number for number, line in lines if line.endswith("# wrong")}
    assert {number for _, number, _ in found} == expected, found


def test_the_examples_are_checked_by_mypy_as_strictly_as_the_package() -> None:
    """UA-67: with every `make test`."""
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert mypy["strict"]
    assert "examples" in mypy["files"]
    assert "mypy" in (ROOT / "Makefile").read_text().split("\ntypes:")[1].split("\n\n")[0]
    assert (ROOT / "src" / "waltz" / "py.typed").exists()
    excused = [path.name for path in EXAMPLES.glob("**/*.py") if "type: ignore" in path.read_text()]
    assert excused == []
