"""The operator's pages name what there is: metrics, log events, messages, keys, options."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from waltz.cli.commands import PLACES
from waltz.cli.metrics_document import SECTIONS
from waltz.cli.server_node import server
from waltz.cli.storage_node import storage
from waltz.configuration.server_settings import SERVER_KEYS
from waltz.configuration.storage_settings import STORAGE_KEYS
from waltz.limits import CONNECTION_UNSENT_BYTES_MAX, WRITE_BUFFER_BYTES_HIGH
from waltz.server.feeding.backlog import (
    CONNECTION_BACKLOG_BYTES_MAX,
    PARTITION_SHARE_BYTES,
    PENDING_APPEND_BYTES_MAX,
    PENDING_APPENDS_MAX,
)
from waltz.server.server_partition import RELEASE_SECONDS_MAX
from waltz.system.peer_watch import PROBE_AFTER_SECONDS

ROOT = Path(__file__).parent.parent
OPERATING = ROOT / "docs" / "operating"
GUIDE = (OPERATING / "storage-node.md").read_text()
SERVER_GUIDE = (OPERATING / "server.md").read_text()
TLS_GUIDE = (OPERATING / "tls.md").read_text()
UNIT = (OPERATING / "waltz-storage.service").read_text()
SOURCE = "\n".join(path.read_text() for path in sorted((ROOT / "src" / "waltz").rglob("*.py")))
WORDS_OF_SOURCE = re.sub(r"\s+", " ", re.sub(r'"\s*\n\s*f?"', "", SOURCE))


METRICS = {each.name for section in SECTIONS.values() for each in section}


@pytest.mark.parametrize("page", ["storage-node", "server", "clients"])
def test_every_metric_of_a_page_exists(page: str) -> None:
    text = (OPERATING / f"{page}.md").read_text()
    assert set(re.findall(r"waltz_(?:storage|server|client)_\w+", text)) <= METRICS


def test_the_page_of_clients_names_what_there_is() -> None:
    text = (OPERATING / "clients.md").read_text()
    for event in re.findall(r"`((?!waltz|on_apply|apply_tra)[a-z]+(?:_[a-z]+)+)`", text):
        assert f'"{event} ' in SOURCE, event
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (OPERATING / target).exists(), target


@pytest.mark.parametrize(
    "event",
    sorted(
        set(re.findall(r"`((?!waltz)[a-z]+(?:_[a-z]+)+)`", GUIDE)) - {"space_low", "space_short"}
    ),
)
def test_every_log_event_of_the_guide_is_logged(event: str) -> None:
    assert f'"{event} ' in SOURCE


@pytest.mark.parametrize(
    "words", re.findall(r"^\| `([^`]+?)(?: FILE| 5 s| … [^`]*)?` \|", TLS_GUIDE, re.MULTILINE)
)
def test_every_message_of_the_guide_to_tls_is_said(words: str) -> None:
    assert words in WORDS_OF_SOURCE


@pytest.mark.parametrize("event", re.findall(r"`(tls_[a-z_]+)`", TLS_GUIDE))
def test_every_log_event_of_the_guide_to_tls_is_logged(event: str) -> None:
    assert re.search(rf'"{event}[ :]', SOURCE)


def test_states_of_space_are_logged_by_name() -> None:
    assert '"space_low ' in SOURCE
    assert '"space_short ' in SOURCE
    assert "space_low" in GUIDE
    assert "space_short" in GUIDE


@pytest.mark.parametrize(
    "words",
    [
        "is locked: another process works in",
        "belongs to cluster",
        "it was moved or copied",
        "but no {CONTROL_FILE_NAME}",
        "no storage directory",
        "is in use",
        "no space for appends",
        "takes no writes since one failed",
        "damaged, not repaired yet",
        "refuses all service",
        "a disk call has not returned for",
    ],
)
def test_messages_that_the_guide_quotes_are_said(words: str) -> None:
    assert words in WORDS_OF_SOURCE
    assert words.replace("{CONTROL_FILE_NAME}", "waltz-storage.ctl") in GUIDE


def test_every_key_and_option_of_the_guide_exists() -> None:
    keys = {key.name for key in STORAGE_KEYS}
    assert set(re.findall(r"`(storage\.\w+(?:\.\w+)*)`", GUIDE)) <= keys
    options = {option for parameter in storage.params for option in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)", GUIDE)) <= options
    commands = set(re.findall(r"`waltz ([a-z]+)", GUIDE))
    assert commands <= set(PLACES)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", GUIDE):
        assert (OPERATING / target).exists(), target
    headings = set(re.findall(r"^## (.+)$", GUIDE, re.MULTILINE))
    for heading in re.findall(r"(?<!\*)\*([A-Z][^*`]+)\*(?!\*)", GUIDE):
        assert heading in headings, heading


def test_the_unit_starts_what_there_is() -> None:
    for line in re.findall(r"^ExecStart(?:Pre)?=(.+)$", UNIT, re.MULTILINE):
        program, command, *arguments = line.split()
        assert (Path(program).name, command) == ("waltz", "storage")
        options = {option for parameter in storage.params for option in parameter.opts}
        assert all(word in options for word in arguments if word.startswith("--"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "waltz-storage.service"
    unit.write_text(UNIT.replace("/opt/waltz/bin/waltz", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# The page of servers


def test_the_page_of_servers_names_what_there_is() -> None:
    keys = {key.name for key in SERVER_KEYS}
    assert set(re.findall(r"`(server\.\w+(?:\.\w+)*)`", SERVER_GUIDE)) <= keys
    assert set(re.findall(r"`waltz ([a-z]+)", SERVER_GUIDE)) <= set(PLACES)
    for event in re.findall(r"`((?!waltz)[a-z]+(?:_[a-z]+)+)`", SERVER_GUIDE):
        assert f'"{event} ' in SOURCE, event
    for target in re.findall(r"\]\(([^)#]+)\)", SERVER_GUIDE):
        assert (OPERATING / target).exists(), target


@pytest.mark.parametrize(
    "words",
    [
        "no server has it",
        "its server does not answer",
        "its server has not opened it",
        "it has had no store session yet",
        "its server reaches",
        "it has failed and is opened again soon",
        "takes no appends",
    ],
)
def test_messages_that_the_page_of_servers_quotes_are_said(words: str) -> None:
    assert words in WORDS_OF_SOURCE
    assert words in SERVER_GUIDE


def test_the_bounds_of_the_page_of_servers_are_those_in_force() -> None:
    mebibyte = 1024 * 1024
    for line in (
        f"| {CONNECTION_BACKLOG_BYTES_MAX // mebibyte} MiB |",
        f"| {PENDING_APPEND_BYTES_MAX // mebibyte} MiB, or {PENDING_APPENDS_MAX:,} |",
        f"more than {PARTITION_SHARE_BYTES // 1024} KiB",
        f"| {WRITE_BUFFER_BYTES_HIGH // mebibyte} MiB |",
        f"| {(CONNECTION_UNSENT_BYTES_MAX - WRITE_BUFFER_BYTES_HIGH) // mebibyte} MiB |",
        f"up to {RELEASE_SECONDS_MAX:g} s",
        f"after {PROBE_AFTER_SECONDS} s",
    ):
        assert line in SERVER_GUIDE, line


def test_the_unit_of_servers_starts_what_there_is() -> None:
    unit = (OPERATING / "waltz-server.service").read_text()
    commands = re.findall(r"^ExecStart(?:Pre)?=/opt/waltz/bin/waltz (.+)$", unit, re.MULTILINE)
    options = {option for parameter in server.params for option in parameter.opts}
    assert len(commands) == 2
    for line in commands:
        command, *arguments = line.split()
        assert command == "server"
        assert all(word in options for word in arguments if word.startswith("--"))
