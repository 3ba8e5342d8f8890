"""The league on Spark: the section that is printed of it, its checks, and a short run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from bench.peers.peer import UnavailableHereError
from bench.peers.spark_jars import SPARK_VERSION, jars, measured_environment
from bench.peers.spark_systems import SparkSystem, data_of
from bench.peers.spark_table import WORKS, spark_table
from bench.spark_league import Facts, expect, expect_written
from tests.clusters import ROOT
from waltz.errors import WaltzError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def figures(**systems: list[tuple[float, float, float]]) -> dict[str, Any]:
    """Figures of 1,000 rows; of each round of a system the seconds, those of Spark's processors and
    of the servers'."""
    names = ("seconds", "spark_seconds", "server_seconds")
    rounds = {
        system: [{"rows": 1_000, **dict(zip(names, each, strict=True))} for each in found]
        for system, found in systems.items()
    }
    return {
        "trial": True, "spark": "4", "kafka": "5", "rounds": 3, "warm_up_rounds": 1,
        "server_warm_up_seconds": 20.0,
        "rows": {"128 B": 1_000}, "per_trigger": 10, "missing": {"Delta": "no connector"},
        "machine": {"cores": 2, "load_before": 0.0, "load_after": 0.0},
        "systems": {
            system: {"promise": "kept", "found": {f"{work}, 128 B": found for work in WORKS}}
            for system, found in rounds.items()
        },
    }  # fmt: skip


def test_the_section_has_the_round_in_the_middle_and_each_round_s_ratio() -> None:
    waltz = [(2.0, 1.0, 1.0), (4.0, 3.0, 1.0), (1.0, 0.5, 0.5)]
    kafka = [(4.0, 1.0, 3.0), (4.0, 2.0, 0.0), (2.0, 0.5, 0.5)]
    page = spark_table(figures(Kafka=kafka, Waltz=waltz))
    ours = "| Waltz | 500 | 500 | 2.0 | 1.0 | 1.0 |"
    theirs = "| Kafka | 250 | 500 | 4.0 | 2.0 | 0.0 |"
    for work in WORKS:
        assert f"### {work.capitalize()}, 128 B\n" in page
        assert f"| {work}, 128 B | 1.00 (0.50 to 2.00) | 2.00 (1.00 to 2.00) |" in page
    assert page.count(ours) == page.count(theirs) == len(WORKS)
    assert "- Not measured: Delta: no connector\n" in page
    assert "trial figures" in page


def test_a_long_run_tells_its_first_rounds_from_its_last() -> None:
    kafka = [(1.0, spent, 0.0) for spent in (9.0, 4.0, 5.0, 3.0, 2.0, 1.0, 8.0)]
    page = spark_table({**figures(Kafka=kafka, Waltz=[(1.0, 1.0, 0.0)] * 7), "rounds": 7})
    assert (
        "| core-second, first 3 rounds | core-second, last 3 rounds |\n|---|---:|---:|---:|---:|\n"
        in page
    )
    assert "| batch, 128 B | 4.00 (1.00 to 9.00) | 1.00 (1.00 to 1.00) | 5.00 | 2.00 |" in page


def test_the_order_is_that_of_rows_per_core_second() -> None:
    page = spark_table(figures(Waltz=[(1.0, 2.0, 2.0)], Parquet=[(9.0, 3.0, 0.0)]))
    assert page.index("| Parquet | 111 | 333 |") < page.index("| Waltz | 1,000 | 250 |")
    assert "as a multiple of" not in page


class Counting(SparkSystem):
    """A sink that has a number of rows more than before."""

    name = "Counting"
    promise = "none"

    def __init__(self, rows: int, *, writes_once: bool) -> None:
        self.rows, self.writes_once = rows, writes_once

    @contextmanager
    def running(self) -> Iterator[None]:
        yield

    def fill(self, source: Path) -> None:
        raise AssertionError("it is not filled")

    def batch(self) -> DataFrame:
        raise AssertionError("it is not read")

    stream = batch

    def write(self, rows: DataFrame, number: int) -> None:
        raise AssertionError("it is not written")

    def written(self, number: int) -> int:
        return self.rows


def test_rows_that_are_missing_or_there_twice_are_no_figures() -> None:
    expected = Facts(10, 7)
    for rows, writes_once in ((10, True), (10, False), (11, False)):
        expect_written(Counting(rows, writes_once=writes_once), 0, expected)
    for rows, writes_once in ((9, True), (9, False), (11, True)):
        with pytest.raises(WaltzError, match=f"sink: {rows} rows, expected 10"):
            expect_written(Counting(rows, writes_once=writes_once), 0, expected)
    system = Counting(0, writes_once=True)
    assert expect(system, "batch", Facts(10, 7), expected) == 10
    with pytest.raises(WaltzError, match="Counting, batch: read"):
        expect(system, "batch", Facts(10, 8), expected)


def test_rows_are_appended_to_their_own_partitions() -> None:
    table: dict[str, list[Any]] = {"partition": [0, 1, 0], "data": [b"a", b"b", b"c"]}
    assert [data_of(table, each) for each in range(3)] == [[b"a", b"c"], [b"b"], []]


def test_what_is_measured_keeps_its_compiled_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = measured_environment({"PYTHONDONTWRITEBYTECODE": "1", "SPARK_HOME": "/a", "HOME": "/b"})
    compiled = str(tmp_path / "waltz-bench" / "bytecode")
    assert found == {"HOME": "/b", "PYTHONPYCACHEPREFIX": compiled}
    program = "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=found, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", compiled]


def test_a_jar_that_is_another_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    maven = tmp_path / "mvn"
    maven.write_text(
        "#!/bin/sh\n"
        'for each; do case "$each" in -DoutputDirectory=*) into="${each#*=}";; esac; done\n'
        '/bin/mkdir "$into" && printf jar > "$into/some-1.jar"\n'
    )
    maven.chmod(0o755)
    right = {("org.some", "some", "1"): sha256(b"jar").hexdigest()}
    (path,) = jars("some", right)
    maven.unlink()
    assert jars("some", right) == [path]
    pom = path.parent.with_name(f"{path.parent.name}.xml").read_text()
    assert "<groupId>org.some</groupId><artifactId>some</artifactId><version>1</version>" in pom
    path.write_bytes(b"another")
    with pytest.raises(UnavailableHereError, match=r"some-1.jar has the SHA-256 .*, expected"):
        jars("some", right)
    path.unlink()
    with pytest.raises(UnavailableHereError, match=r"some-1.jar is missing"):
        jars("some", right)


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_system_is_read_followed_and_written(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    numbers = ("--rows", "4000", "--rounds", "1", "--warm-up-rounds", "0")
    done = subprocess.run(
        [sys.executable, "-m", "bench.spark_league", "--spark", "installed", *numbers,
         "--server-warm-up-seconds", "1", "--trial", "--json", str(file)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [each for each in tmp_path.iterdir() if each != file] == []
    value = json.loads(file.read_text())
    assert done.stdout == spark_table(value)
    without_delta = version("pyspark") != SPARK_VERSION
    assert list(value["missing"]) == (["Delta"] if without_delta else [])
    systems = cast("dict[str, Any]", value["systems"])
    assert set(systems) == {"Waltz", "Kafka", "Parquet", *([] if without_delta else ["Delta"])}
    for name, system in systems.items():
        served = 0.0
        for size, rows in (("128 B", 4_000), ("1024 B", 1_000)):
            for work in WORKS:
                (found,) = system["found"][f"{work}, {size}"]
                assert found["rows"] == rows
                assert found["seconds"] > 0
                assert found["spark_seconds"] > 0
                served += found["server_seconds"]
        assert (served > 0) == (name in {"Waltz", "Kafka"})
