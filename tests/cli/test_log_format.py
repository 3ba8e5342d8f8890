"""The log as lines and as JSON objects."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.events import MEANINGS, calls
from waltz.cli.log_format import (
    CONVERSION,
    LIBRARY_EVENT,
    JsonFormatter,
    LogFormat,
    ending_in_log,
    parsed,
)
from waltz.errors import ConfigurationError
from waltz.log_fields import Fields


def logged(template: str, *arguments: object, name: str = "waltz.x", **more: Any) -> dict[str, Any]:
    record = logging.LogRecord(
        name, logging.WARNING, "x.py", 1, template, arguments, more.get("exc_info")
    )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    assert found["text"] == template % arguments
    return found


def test_a_line_is_an_object_with_its_event_and_its_fields() -> None:
    found = logged("store_opened partition=%d replica=%s seconds=%.1f", 3, "s:1", 0.25)
    assert found["event"] == "store_opened"
    assert found["fields"] == {"partition": 3, "replica": "s:1", "seconds": 0.25}
    assert (found["level"], found["logger"]) == ("WARNING", "waltz.x")
    assert found["time"].endswith("+00:00")
    assert list(found) == ["time", "level", "logger", "event", "fields", "text"]


def test_a_sentence_is_text_and_no_field() -> None:
    found = logged("client_ahead partition=%d mark=%d: asking again for %g s", 0, 7, 2.0)
    assert found["fields"] == {"partition": 0, "mark": 7}
    assert logged("tls_believes_anyone: set trustStore")["fields"] == {}
    found = logged("worker_ended error=%r; it is started again", ValueError("x"))
    assert found["fields"] == {"error": "ValueError('x')"}


def test_fields_that_calls_share_keep_their_types() -> None:
    place = Fields(partition=1, replica="s:1", error="a b=c")
    found = logged("replica_dropped %s reason=%s", place, "gone")
    assert found["fields"] == {"partition": 1, "replica": "s:1", "error": "a b=c", "reason": "gone"}
    found = logged("parked x=%d %s error=%r; see it", 4, Fields(bytes=None), "e")
    assert found["fields"] == {"x": 4, "bytes": None, "error": "'e'"}


@pytest.mark.parametrize(
    "hostile", ["x partition=9", 'a"b\nevent=z', "\ud800", "%d %s", "\x1b[2J", "; partition=9"]
)
def test_what_a_peer_says_stays_in_the_field_that_quotes_it(hostile: str) -> None:
    found = logged("client_faulted peer=%s error=%s", "p", hostile)
    assert found["event"] == "client_faulted"
    assert found["fields"] == {"peer": "p", "error": hostile}


def test_a_value_of_several_parts_and_one_that_is_written_out_are_texts() -> None:
    assert logged("x_y path=%s/%s mode=%o", "a", "b", 8)["fields"] == {"path": "a/b", "mode": "10"}
    assert logged("x_y error=nothing in %g s", 3.0)["fields"] == {"error": "nothing in 3 s"}
    assert logged("x_y callback=apply partition=%d", 3)["fields"]["callback"] == "apply"
    assert logged("x_y seconds=%g is_on=%s", float("inf"), True)["fields"] == {
        "seconds": "inf",
        "is_on": True,
    }


def test_other_libraries_have_no_events_and_errors_have_their_tracebacks() -> None:
    found = logged("%s is a=%s", "this", "b", name="kazoo.client")
    assert (found["event"], found["fields"]) == (LIBRARY_EVENT, {})
    try:
        raise ValueError("oh\nno")
    except ValueError:
        failed = logged("task_failed", exc_info=sys.exc_info())
    assert "ValueError: oh" in failed["exception"]


def test_every_template_of_the_package_gives_each_of_its_arguments_to_one_field_or_none() -> None:
    for call in calls():
        assert call.template is not None
        head = call.template.split(": ")[0].split("; ")[0]
        taken = sum(len(CONVERSION.findall(value)) for _, value in parsed(call.template).fields)
        assert taken == len(CONVERSION.findall(head)), call.template


def test_an_error_that_ends_the_process_is_an_event_in_json_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigurationError), ending_in_log(LogFormat.TEXT):
        raise ConfigurationError("no port")
    assert caplog.messages == []
    with pytest.raises(SystemExit) as ended, ending_in_log(LogFormat.JSON):
        raise ConfigurationError("no port")
    assert ended.value.code == 1
    assert caplog.messages == ["process_failed error=no port"]


@pytest.mark.processes
def test_all_that_the_processes_of_a_cluster_log_is_json_if_that_is_wanted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "waltz.cli.main", "up", "--port", "0", "--end-with-stdin"]
    directory = tmp_path / "data"
    more = ["--log-format", "json", "--directory", str(directory)]
    with subprocess.Popen(
        [*command, *more], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        assert running.stdin is not None
        for line in running.stderr:
            if "Ctrl-C" in line:
                break
        running.stdin.close()
        assert running.wait(timeout=60) == 0
    events = set()
    for log in sorted((directory / "logs").iterdir()):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert lines, log
        events |= {line["event"] for line in lines}
    assert {"server_started", "storage_started"} <= events
    assert events <= MEANINGS.keys()
