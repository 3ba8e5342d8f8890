"""What a storage node gives to a peer that has not shown yet where it belongs: little, and not for
long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.support import KEY, SESSION
from tests.storage.talkers import NOBODY, P0, Talker, append, data_talker
from tests.storage.test_storage_node_shell import run_node
from waltz.limits import FRAME_BYTES_MAX, HELLO_BYTES_MAX
from waltz.storage import storage_node_shell as storage_shell
from waltz.storage.storage_node_shell import StorageNode
from waltz.system import tcp_network as system_network
from waltz.types import NO_SESSION
from waltz.wire.frame import FRAME_HEADER
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    LastSessionInfoRequest,
    OpenRequest,
    SuccessResponse,
)

MANY = HELLO_BYTES_MAX // 30
"""Records that do not fit into a Hello."""


async def until_the_end(talker: Talker) -> None:
    while await talker.connection.read():
        pass


@pytest.mark.parametrize("admin", [False, True])
def test_a_peer_that_greets_and_never_opens_is_cut(
    tmp_path: Path, admin: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, a Hello was enough to keep a connection for ever."""
    monkeypatch.setattr(storage_shell, "HANDSHAKE_SECONDS_MAX", 0.2)

    async def test(node: StorageNode) -> None:
        address = node.admin_address if admin else node.data_address
        await until_the_end(await Talker.connect(address, admin=admin))

    run_node(tmp_path, test)
    assert "no Hello and open request in 0.2 s" in caplog.text


def test_asking_before_opening_buys_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_shell, "HANDSHAKE_SECONDS_MAX", 0.2)

    async def test(node: StorageNode) -> None:
        talker = await Talker.connect(node.data_address, admin=False)
        while True:
            talker.send(LastSessionInfoRequest(SESSION, 1, P0, offline=False))
            if not await talker.connection.read():
                break

    run_node(tmp_path, test)


def test_who_has_opened_may_be_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_shell, "HANDSHAKE_SECONDS_MAX", 2.0)

    async def test(node: StorageNode) -> None:
        opened = await data_talker(node)
        await until_the_end(await Talker.connect(node.data_address, admin=False))
        assert isinstance(await opened.ask(append(0, 0, 1)), SuccessResponse)

    run_node(tmp_path, test)


def test_before_the_open_request_frames_are_small(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A length of 32 MiB is judged before a byte of it is kept."""

    async def test(node: StorageNode) -> None:
        talker = await Talker.connect(node.data_address, admin=False)
        talker.send(append(0, 0, MANY))
        await until_the_end(talker)
        opened = await data_talker(node)
        assert isinstance(await opened.ask(append(0, 0, MANY)), SuccessResponse)

    run_node(tmp_path, test)
    assert f"expected 0 to {HELLO_BYTES_MAX}" in caplog.text


def test_peers_that_send_halves_of_frames_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each may send 32 MiB; the one that has sent most ends, and the others are served."""
    monkeypatch.setattr(system_network, "CONNECTIONS_BYTES_MAX", 4 * 1024 * 1024)

    async def test(node: StorageNode) -> None:
        sizes = (1_000_000, 2_000_000, 1_500_000)
        talkers = [await data_talker(node) for _ in sizes]
        for talker, size in zip(talkers, sizes, strict=True):
            header = FRAME_HEADER.pack(STORAGE_CODEC.magic, talker.link.version, FRAME_BYTES_MAX)
            talker.connection.write(header + bytes(size))
        await until_the_end(talkers[1])
        assert isinstance(await (await data_talker(node)).ask(append(0, 0, 1)), SuccessResponse)

    run_node(tmp_path, test)
    assert caplog.text.count("connection_given_up") == 1
    assert "this one held most" in caplog.text


def test_an_open_request_and_what_follows_may_come_at_once(tmp_path: Path) -> None:
    async def test(node: StorageNode) -> None:
        talker = await Talker.connect(node.data_address, admin=False)
        talker.send(OpenRequest(NO_SESSION, -1, NOBODY, KEY, 3), append(0, 0, 1))
        answers = await talker.receive(2)
        assert all(isinstance(answer, SuccessResponse) for answer in answers)

    run_node(tmp_path, test)
