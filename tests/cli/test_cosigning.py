"""How a witness is named on the command line; asking one is in `test_witness.py`."""

from __future__ import annotations

import socket
from threading import Thread

import click
import pytest

from tests.attest.trees import (
    CLUSTER,
    PARTITION,
    MemoryBlocks,
    MemoryFiles,
    block_of,
    known_key,
)
from waltz.attest.attester import Attester
from waltz.attest.notes import KeyKind
from waltz.attest.tree_files import TreeFiles
from waltz.cli.cosigning import Witness
from waltz.errors import ConfigurationError, ConnectionFailedError
from waltz.types import TransactionId

KEY = known_key("witness.example/w", KeyKind.WITNESS).public_key


def test_a_witness_is_a_url_and_a_key() -> None:
    found = Witness.parse(f"http://127.0.0.1:7190/={KEY}")
    assert found == Witness("http://127.0.0.1:7190", KEY)


@pytest.mark.parametrize("text", ["", "http://127.0.0.1:7190", f"ftp://127.0.0.1={KEY}", str(KEY)])
def test_what_names_no_witness_is_a_wrong_call(text: str) -> None:
    with pytest.raises(click.UsageError, match="expected http"):
        Witness.parse(text)


@pytest.mark.parametrize("text", ["nothing", "x" * 5_000])
def test_a_key_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="neither a file nor a key"):
        Witness.parse(f"http://127.0.0.1:7190={text}")


def test_the_key_of_a_log_is_no_witness() -> None:
    log = known_key("waltz/test", KeyKind.LOG).public_key
    with pytest.raises(ConfigurationError, match="is the key of a log, and witnesses nothing"):
        Witness.parse(f"http://127.0.0.1:7190={log}")


@pytest.mark.parametrize("place", ["127.0.0.1:x", "[::1"])
def test_a_url_that_is_none_is_named_before_anybody_is_asked(place: str) -> None:
    with pytest.raises(click.UsageError, match="expected http"):
        Witness.parse(f"http://{place}={KEY}")


def test_what_answers_and_is_no_witness_is_told() -> None:
    """An attester that goes on must not end for it."""
    files = MemoryFiles()
    key = known_key("waltz/test", KeyKind.LOG)
    tree = Attester(TreeFiles(files, PARTITION), CLUSTER, PARTITION, key)
    tree.extend(MemoryBlocks([block_of(0, 1, b"x")]), TransactionId(1))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                connection.sendall(b"SSH-2.0-of another program\r\n")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        thread = Thread(target=answer, daemon=True)
        thread.start()
        witness = Witness(f"http://127.0.0.1:{server.getsockname()[1]}", KEY)
        with pytest.raises(ConnectionFailedError, match="does not answer as a witness"):
            tree.cosign(lambda note, hashes: [witness.cosign(note, hashes)])
        thread.join()
