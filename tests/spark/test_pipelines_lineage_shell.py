"""Events of OpenLineage reach a backend, and no backend fails a run or holds one up."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.clusters import wait_until
from tests.spark.tables_by_value import CLUSTER
from waltz.errors import ConfigurationError, CorruptionError
from waltz.spark.pipelines.definition import PipelineDefinition, parse_definition
from waltz.spark.pipelines.lineage_shell import (
    EVENTS_MAX,
    LineageSender,
    lineage_client,
    lineage_runs,
    told_lineage,
)
from waltz.spark.pipelines.watch import BatchSeen, Beginning
from waltz.types import PartitionId, TransactionId

PATIENCE = 60.0
"""Seconds for which events are waited for that do come."""

RETRY = {"total": 1, "backoff_factor": 0}
MARKS = {PartitionId(0): TransactionId(7)}


@pytest.fixture(autouse=True)
def _nothing_is_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the environment nor a file of this machine says where events go."""
    monkeypatch.setattr("os.environ", {"HOME": str(tmp_path), "PATH": ""})
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def definition(tmp_path: Path) -> PipelineDefinition:
    text = "pipeline: archive\ncluster: 127.0.0.1:7100\ntarget: archive\n"
    return parse_definition(f"{text}lineage: {{namespace: shop, job: log}}\n", directory=tmp_path)


def configure(**transport: object) -> None:
    """Write the library's own file of this directory; JSON is YAML."""
    Path("openlineage.yml").write_text(json.dumps({"transport": transport}))


def run(definition: PipelineDefinition, *, passes: int = 1) -> None:
    with told_lineage(definition, end_seconds=PATIENCE) as runs:
        for _ in range(passes):
            runs.pass_begins()
            runs.begins(Beginning(CLUSTER, {}))
            runs.took_in(BatchSeen(MARKS, 7, 0, 900, {}))
            runs.pass_ended()


def fail(definition: PipelineDefinition) -> None:
    with told_lineage(definition, end_seconds=PATIENCE) as runs:
        runs.begins(Beginning(CLUSTER, {}))
        raise CorruptionError("damaged")


class Backend(BaseHTTPRequestHandler):
    """Keeps what is posted, and answers as it is told."""

    posted: ClassVar[list[tuple[str, str | None, dict[str, Any]]]]
    status: ClassVar[int]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.end_headers()
        self.posted.append((self.path, self.headers["Authorization"], json.loads(body)))

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def backend(status: int) -> Iterator[tuple[str, type[Backend]]]:
    """Yield the URL of a backend that runs, and its class, which has what it was told."""
    kind = type("Kind", (Backend,), {"posted": [], "status": status})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = False  # closing it waits until each event is noted
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", kind
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_the_environment_names_a_backend_which_gets_the_events_in_order(
    definition: PipelineDefinition,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with backend(201) as (url, kind):
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        monkeypatch.setenv("OPENLINEAGE_API_KEY", "secret")
        run(definition, passes=2)
    paths, keys, events = zip(*kind.posted, strict=True)
    assert (set(paths), set(keys)) == ({"/api/v1/lineage"}, {"Bearer secret"})
    assert [each["eventType"] for each in events] == ["START", "COMPLETE"] * 2
    one, other, third, _ = (each["run"]["runId"] for each in events)
    assert one == other != third
    assert events[1]["inputs"][0]["inputFacets"]["waltz_marks"]["end"] == {"0": 7}
    assert not warnings(caplog)


def test_events_are_lines_of_a_file_and_an_error_ends_the_run(
    definition: PipelineDefinition, tmp_path: Path
) -> None:
    repository = tmp_path / ".git"  # of which the library would tell, if it were let
    repository.mkdir()
    (repository / "HEAD").write_text("ref: refs/heads/main\n")
    (repository / "config").write_text('[remote "origin"]\n\turl = https://example.com/x.git\n')
    configure(type="file", log_file_path=str(tmp_path / "events"), append=True)
    with pytest.raises(CorruptionError):
        fail(definition)
    events = [json.loads(each) for each in (tmp_path / "events").read_text().splitlines()]
    assert [each["eventType"] for each in events] == ["START", "FAIL"]
    error = events[1]["run"]["facets"]["errorMessage"]
    assert (error["message"], "sourceCodeLocation" in events[1]["job"]["facets"]) == (
        "CorruptionError: damaged",
        False,
    )


def test_the_console_shows_events(
    definition: PipelineDefinition, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("openlineage.client.transport.console")
    logger.propagate = False  # as in a command, where nobody has set up a log
    try:
        configure(type="console")
        run(definition)
        shown = [json.loads(each) for each in capfd.readouterr().err.splitlines()]
    finally:
        logger.handlers.clear()
        logger.propagate = True
    assert [each["eventType"] for each in shown] == ["START", "COMPLETE"]


def test_a_backend_that_answers_with_errors_costs_one_line(
    definition: PipelineDefinition, caplog: pytest.LogCaptureFixture
) -> None:
    with backend(500) as (url, kind):
        configure(type="http", url=url, retry=RETRY)
        run(definition, passes=3)
    assert len(kind.posted) == 12  # each event twice, as the file says
    (line,) = warnings(caplog)
    assert line.startswith("lineage_not_told events=")
    assert "changes nothing of the run: RetryError: " in line


def test_a_backend_that_never_answers_is_left_when_the_command_ends(
    definition: PipelineDefinition, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        configure(type="http", url=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=600)
        sender = LineageSender(lineage_client(), end_seconds=0.1)
        runs_of(sender, definition)
        sender.close()  # returns, although no answer ever comes
    (line,) = warnings(caplog)
    assert line == (
        "lineage_not_told events=2: OpenLineage was not told of everything, which changes nothing"
        " of the run: no answer within 0.1 s of the end"
    )


def test_events_that_nobody_takes_do_not_pile_up(
    definition: PipelineDefinition, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        configure(type="http", url=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=600)
        sender = LineageSender(lineage_client(), end_seconds=0.1)
        for _ in range(EVENTS_MAX):
            runs_of(sender, definition)
        sender.close()
    (line,) = warnings(caplog)
    assert line.endswith(f": {EVENTS_MAX} events wait already")


def test_a_backend_that_comes_back_is_told_and_a_new_failure_is_a_new_line(
    definition: PipelineDefinition, caplog: pytest.LogCaptureFixture
) -> None:
    with backend(500) as (url, kind):
        configure(type="http", url=url, retry=RETRY)
        sender = LineageSender(lineage_client(), end_seconds=PATIENCE)
        for status, posted in ((500, 4), (201, 6), (500, 10)):
            kind.status = status
            runs_of(sender, definition)
            wait_until(lambda: len(kind.posted) == posted, "the events are not sent")  # noqa: B023
        sender.close()
    assert len(warnings(caplog)) == 2


def runs_of(sender: LineageSender, definition: PipelineDefinition) -> None:
    """Tell the two events of a pass."""
    runs = lineage_runs(definition, sender)
    runs.begins(Beginning(CLUSTER, {}))
    runs.pass_ended()


def test_a_run_does_not_begin_if_lineage_can_be_told_to_nobody(
    definition: PipelineDefinition,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigurationError, match="nothing says where to: set OPENLINEAGE_URL"):
        run(definition)
    assert not warnings(caplog)
    configure(type="http", url="marquez")
    with pytest.raises(ConfigurationError, match=r"openlineage\.yml\) is wrong: Need valid url"):
        run(definition)
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    with pytest.raises(ConfigurationError, match=r"is missing: run `pip install '\.\[lineage\]'`"):
        run(definition)


def test_lineage_can_be_turned_off_from_outside(
    definition: PipelineDefinition,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    run(definition)
    assert not warnings(caplog)
