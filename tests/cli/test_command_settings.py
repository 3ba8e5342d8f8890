"""Options over a file; the file's own faults are in `test_storage_node.py`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from waltz.cli.command_settings import given_options, print_settings, read_settings
from waltz.configuration.server_settings import (
    ADVERTISED_ADDRESS,
    BIND_ADDRESS,
    PORT,
    SERVER_KEYS,
    server_settings,
)
from waltz.configuration.settings import Given
from waltz.types import Address


def test_an_address_sets_two_keys_and_what_was_not_given_sets_none() -> None:
    given = given_options(
        [("--address", BIND_ADDRESS, PORT, Address("host", 7000))],
        {"--advertised": (ADVERTISED_ADDRESS, None)},
    )
    assert given == {
        "server.bindAddress": Given("host", "--address"),
        "server.port": Given(7000, "--address"),
    }


def test_options_come_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.yml"
    path.write_text("coordinator.address: c:1\nserver: {port: 1, bindAddress: here}\n")
    options = {PORT.name: Given(2, "--address")}
    settings = read_settings(str(path), options, SERVER_KEYS, server_settings)
    assert (settings[PORT], settings[BIND_ADDRESS]) == (2, "here")


def test_without_a_file_the_options_have_to_be_enough() -> None:
    with pytest.raises(click.UsageError, match="missing: --coordinator, --address"):
        read_settings(None, {}, SERVER_KEYS, server_settings)


def test_what_would_be_in_force_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    given = {
        "coordinator.address": Given("127.0.0.1:1", "file"),
        "server.port": Given(7000, "file"),
        "server.prot": Given(1, "file"),
    }
    print_settings(server_settings(given))
    printed = capsys.readouterr()
    assert "server.port: 7000  # file" in printed.out
    assert "did you mean server.port?" in printed.err
