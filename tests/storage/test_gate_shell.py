"""A policy at a storage node on real sockets, with TLS: who is denied, and what the disk keeps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.fake_cluster import until
from tests.storage.support import KEY, SESSION, batch, t
from tests.storage.talkers import LOOPBACK, NOBODY, P0, P1, Talker, append, config
from tests.tls_files import TlsFiles
from waltz.access.policy_standing import PolicyStanding
from waltz.access.policy_watch_shell import AccessConfig
from waltz.access.principals import parse_pattern
from waltz.errors import ConfigurationError
from waltz.host import Connection, Disk
from waltz.storage.storage_node_shell import StorageNode
from waltz.system.real_host import real_host
from waltz.types import NO_SESSION, Address, SessionId, TlsSettings
from waltz.wire.admin_protocol import (
    ADMIN_CODEC,
    AdminOpenRequest,
    AdminSuccessResponse,
    AssignedPartitionStatusRequest,
    MetricsRequest,
    MetricsResponse,
    PartitionAccessRequest,
    PartitionAssignmentRequest,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Codec, Message
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    AppendRecordsRequest,
    LastSessionInfoRequest,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    OpenRequest,
    SetLowWaterMarkRequest,
    SuccessResponse,
    TruncateRequest,
)

POLICY = """
version: 7
mode: deny
default: deny
roles:
  node: {verbs: [server]}
  half: {verbs: [server], partitions: 1}
  reader: {verbs: [read, append, status], partitions: all}
  operator: {verbs: [status, admin]}
grants:
  "spiffe://tests/waltz": [node]
  "spiffe://tests/half": [half]
  "spiffe://tests/reader": [reader]
  "spiffe://tests/ann": [operator]
"""
FORGED = SessionId(SESSION + 1)
OPENING = OpenRequest(NO_SESSION, -1, NOBODY, KEY, 3)
ADMIN_OPENING = AdminOpenRequest(-1, KEY, 3)
VERSIONS = STORAGE_CODEC.versions


class Setting:
    """A node with the policy in a file, and the certificates of those whom it names."""

    def __init__(self, files: TlsFiles, node: StorageNode, policy: Path) -> None:
        self.node = node
        self.policy = policy
        self._files = files

    async def unheard(self, name: str | None, address: Address) -> Connection:
        """Return a connection of somebody who has said nothing."""
        certificate = None if name is None else self._files.issue(name)
        host = real_host(None, TlsSettings(certificate, authorities=self._files.authorities))
        return await host.network.connect(address)

    async def talker(self, name: str | None, address: Address, codec: Codec) -> Talker:
        """Return somebody who has said Hello, and nothing else."""
        talker = Talker(await self.unheard(name, address), Link(codec, "a test"))
        talker.connection.write(talker.link.hello())
        while talker.link.version is None:
            data = await talker.connection.read()
            assert data
            talker.answers += talker.link.receive(data)
        return talker

    async def server(self, name: str, version: int = VERSIONS[-1]) -> Talker:
        codec = STORAGE_CODEC.up_to(version)
        return await self.talker(name, self.node.data_address, codec)

    async def tool(self, name: str) -> Talker:
        return await self.talker(name, self.node.admin_address, ADMIN_CODEC)

    def standing(self) -> PolicyStanding:
        found = self.node.state().policy
        assert found is not None
        return found

    def denials(self) -> dict[tuple[str, str], int]:
        return dict(self.standing().denials)


def play(
    directory: Path,
    scene: Callable[[Setting], Awaitable[None]],
    policy: str | None = POLICY,
    *,
    disk: Disk | None = None,
    handshake_seconds: float | None = None,
    **more: object,
) -> None:
    """Play `scene` with a node, whose files are in `directory / "node"`, from start to stop;
    `policy` None: it has none."""
    (directory / "node").mkdir(exist_ok=True)
    files, path = TlsFiles(directory), directory / "policy.yaml"
    path.write_text(policy or "")

    async def main() -> None:
        policy_path = None if policy is None else str(path)
        access = AccessConfig(policy_path=policy_path, **more)  # type: ignore[arg-type]
        host = real_host(None, files.peer(), handshake_seconds=handshake_seconds)
        host = host if disk is None else replace(host, disk=disk)
        place = directory / "node"
        seconds = {"handshake_seconds": handshake_seconds}
        node = StorageNode(host, config(place, data_address=LOOPBACK, access=access, **seconds))
        await node.start()
        try:
            await scene(Setting(files, node, path))
        finally:
            await node.stop()

    asyncio.run(asyncio.wait_for(main(), 240.0))


async def hear_the_end(talker: Talker) -> list[Message]:
    """Return what was heard until the node ended the connection."""
    while data := await talker.connection.read():
        talker.answers += talker.link.receive(data)
    return talker.answers


async def write_three(setting: Setting) -> None:
    server = await setting.server("waltz")
    assert isinstance(await server.ask(OPENING), SuccessResponse)
    assert isinstance(await server.ask(append(1, 0, 3)), SuccessResponse)


async def nothing(_: Setting) -> None: ...


def content(directory: Path) -> dict[str, bytes]:
    """Return every file of the node, by its path."""
    node = directory / "node"
    return {
        str(path.relative_to(node)): path.read_bytes()
        for path in sorted(node.rglob("*"))
        if path.is_file()
    }


FORGERIES: list[list[Message]] = [
    [OPENING, LastSessionInfoRequest(FORGED, 1, P0, False)],
    [OPENING, append(1, 3, 2)],
    [OPENING, AppendRecordsRequest(FORGED, 1, P0, batch(3, 2), False)],
    [OPENING, TruncateRequest(SESSION, 1, P0, t(0), False)],
    [OPENING, SetLowWaterMarkRequest(FORGED, 1, P0, t(2), False)],
    [LastSessionInfoRequest(FORGED, 1, P0, False)],
]


def forge(version: int) -> Callable[[Setting], Awaitable[None]]:
    async def scene(setting: Setting) -> None:
        before = setting.denials()
        for forgery in FORGERIES:
            reader = await setting.server("reader", version)
            reader.send(*forgery)
            if setting.standing().denies:
                assert len(await hear_the_end(reader)) <= 1, "that of the open request"
            elif len(forgery) > 1:
                await reader.receive(2)
        assert sum(setting.denials().values()) - sum(before.values()) >= len(FORGERIES) - 1

    return scene


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_reader_forges_leaves_every_byte_of_the_disk_as_it_was(
    tmp_path: Path, version: int
) -> None:
    play(tmp_path, write_three)
    play(tmp_path, nothing)
    before = content(tmp_path)
    play(tmp_path, nothing)
    assert content(tmp_path) == before, "a start and a stop alone change nothing"
    play(tmp_path, forge(version))
    assert content(tmp_path) == before


def test_the_same_forgeries_change_the_disk_if_the_policy_only_observes(tmp_path: Path) -> None:
    play(tmp_path, write_three)
    play(tmp_path, nothing)
    before = content(tmp_path)
    play(tmp_path, forge(VERSIONS[-1]), POLICY.replace("mode: deny", "mode: observe"))
    assert content(tmp_path) != before


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_is_granted_appends_under_a_policy(tmp_path: Path, version: int) -> None:
    async def scene(setting: Setting) -> None:
        server = await setting.server("waltz", version)
        server.send(OPENING, append(1, 0, 3))
        assert [type(each) for each in await server.receive(2)] == [SuccessResponse] * 2
        assert setting.denials() == {}

    play(tmp_path, scene)


def test_a_denial_ends_the_connection_and_the_log_says_who_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(setting: Setting) -> None:
        reader = await setting.server("reader")
        reader.send(LastSessionInfoRequest(FORGED, 1, P0, False))
        assert await hear_the_end(reader) == []
        assert setting.denials() == {("server", "denied"): 1}
        (line,) = [each.getMessage() for each in caplog.records if "request_denied" in each.msg]
        assert "principal=spiffe://tests/reader verb=server partition=0" in line
        assert line.endswith("reason=no role of spiffe://tests/reader has server at partition 0")

    play(tmp_path, scene)


def test_nothing_of_a_read_that_has_a_denied_request_is_carried_out(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        half = await setting.server("half")
        assert isinstance(await half.ask(OPENING), SuccessResponse)
        half.send(append(1, 0, 1, P1), append(2, 0, 1, P0))
        await hear_the_end(half)
        server = await setting.server("waltz")
        assert isinstance(await server.ask(OPENING), SuccessResponse)
        for partition in (P0, P1):
            answer = await server.ask(MaxTransactionIdRequest(SESSION, 1, partition, False))
            assert isinstance(answer, MaxTransactionIdResponse)
            assert answer.transaction_id == -1
        assert setting.denials() == {("server", "denied"): 1}

    play(tmp_path, scene)


def test_whom_the_node_s_own_configuration_names_no_policy_denies(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        ops = await setting.tool("ops")
        assert await ops.ask(ADMIN_OPENING) == AdminSuccessResponse(-1)
        assert isinstance(await (await setting.server("ops")).ask(OPENING), SuccessResponse)
        assert setting.denials() == {}

    play(tmp_path, scene, break_glass=(parse_pattern("spiffe://tests/ops"),))


ADMIN_FORGERIES: list[list[Message]] = [
    [ADMIN_OPENING, PartitionAssignmentRequest(1, (P0,), False, True)],
    [ADMIN_OPENING, PartitionAccessRequest(1, (P0,), False, False)],
]


@pytest.mark.parametrize("name", ["waltz", "reader", "nobody"])
def test_changes_through_the_admin_port_need_admin_and_a_server_s_certificate_has_it_not(
    tmp_path: Path, name: str
) -> None:
    async def scene(setting: Setting) -> None:
        for forgery in ADMIN_FORGERIES:
            tool = await setting.tool(name)
            tool.send(*forgery)
            assert len(await hear_the_end(tool)) <= 1, "that of the open request"
        lacks = "connect" if name == "nobody" else "admin"
        assert setting.denials() == {(lacks, "denied"): len(ADMIN_FORGERIES)}
        assert [each.is_usable for each in setting.node.state().partitions] == [True, True]

    play(tmp_path, scene)


def test_an_operator_uses_the_admin_port_and_not_that_of_servers(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        ann = await setting.tool("ann")
        assert await ann.ask(ADMIN_OPENING) == AdminSuccessResponse(-1)
        assert isinstance(await ann.ask(MetricsRequest(1)), MetricsResponse)
        ann.send(AssignedPartitionStatusRequest(2))
        assert len(await ann.receive(1)) == 1
        assert setting.denials() == {}
        server = await setting.server("ann")
        assert isinstance(await server.ask(OPENING), SuccessResponse)
        server.send(MaxTransactionIdRequest(SESSION, 1, P0, False))
        assert await hear_the_end(server) == []
        assert setting.denials() == {("server", "denied"): 1}

    play(tmp_path, scene)


def test_a_policy_that_observes_serves_and_tells_what_it_would_deny(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(setting: Setting) -> None:
        reader = await setting.server("reader")
        assert isinstance(await reader.ask(OPENING), SuccessResponse)
        assert isinstance(await reader.ask(append(1, 0, 1)), SuccessResponse)
        assert isinstance(await reader.ask(append(2, 1, 1)), SuccessResponse)
        assert setting.denials() == {("server", "observed"): 2}
        lines = [each.getMessage() for each in caplog.records if "would_be_denied" in each.msg]
        assert len(lines) == 1, "one for all appends"
        assert "verb=server partition=0" in lines[0]

    play(tmp_path, scene, POLICY.replace("mode: deny", "mode: observe"))


def test_another_policy_decides_the_next_request_of_a_connection_that_is_open(
    tmp_path: Path,
) -> None:
    async def scene(setting: Setting) -> None:
        server = await setting.server("waltz")
        assert isinstance(await server.ask(OPENING), SuccessResponse)
        assert isinstance(await server.ask(append(1, 0, 1)), SuccessResponse)
        changed = POLICY.replace("version: 7", "version: 8")
        setting.policy.write_text(
            changed.replace("node: {verbs: [server]}", "node: {verbs: [cut]}")
        )
        await until(lambda: setting.standing().version == 8)
        server.send(append(2, 1, 1))
        assert await hear_the_end(server) == []
        assert setting.denials() == {("server", "denied"): 1}

    play(tmp_path, scene)


def test_a_broken_file_changes_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(setting: Setting) -> None:
        setting.policy.write_text(POLICY.replace("verbs: [status, admin]", "verbs: [administer]"))
        await until(lambda: setting.standing().is_faulty)
        (line,) = [each.getMessage() for each in caplog.records if "not_taken" in each.msg]
        assert f"error={setting.policy}, line 9" in line
        ann = await setting.tool("ann")
        assert await ann.ask(ADMIN_OPENING) == AdminSuccessResponse(-1)
        assert setting.standing().version == 7

    play(tmp_path, scene)


def test_a_node_does_not_start_with_a_file_that_has_a_fault_and_touches_nothing(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigurationError, match="line 3"):
        play(tmp_path, nothing, POLICY.replace("deny", "refuse", 1))
    assert content(tmp_path) == {}


def test_without_the_key_nobody_is_denied_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        node = StorageNode(real_host(None), config(tmp_path))
        await node.start()
        assert node.state().policy is None
        await node.stop()

    asyncio.run(main())
    assert any(each.getMessage().startswith("policy_absent") for each in caplog.records)
