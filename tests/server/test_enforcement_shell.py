"""A policy at a server on real sockets, with TLS: who is denied, and what others notice of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import until
from tests.server.builders import PARTITION, append, flush, mount
from tests.server.real_server import running_server
from tests.tls_files import TlsFiles
from waltz.access.policy_standing import PolicyStanding
from waltz.access.policy_watch_shell import POLICY_LOOK_SECONDS, AccessConfig
from waltz.access.principals import parse_pattern
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.connections.logical_handshake import Handshake
from waltz.errors import ConfigurationError
from waltz.host import Connection, Host
from waltz.server.server_shell import Server
from waltz.system.real_host import real_host
from waltz.types import TlsSettings
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    CLIENT_GREETING,
    AddPreferredPartitionRequest,
    FlushRequest,
    FlushResponse,
    MountResponse,
    MountState,
    ServerPartitionsAssignmentRequest,
)
from waltz.wire.cut_protocol import HoldRequest
from waltz.wire.discovery_protocol import ClientIdRequest, TopologyRequest
from waltz.wire.handshake import Link
from waltz.wire.lifecycle_protocol import Feature
from waltz.wire.logical_link import LogicalLink
from waltz.wire.message import Message

VERSIONS = CLIENT_CODEC.versions
POLICY = """
version: 7
mode: deny
default: deny
roles:
  orders: {verbs: [append, read], partitions: 3, headers: 0}
  reader: {verbs: [read], partitions: all}
  asker: {verbs: [status]}
grants:
  "spiffe://tests/orders": [orders]
  "spiffe://tests/spark": [reader]
  "spiffe://tests/ann": [asker]
"""


class Peer:
    """Somebody with a certificate, or without, who says and hears single messages."""

    def __init__(
        self, connection: Connection, version: int, features: Collection[Feature] = ()
    ) -> None:
        self.connection = connection
        self.version = version
        self.features = features
        self.heard: list[Message] = []
        self.link: LogicalLink

    async def open(self) -> None:
        link = Link(CLIENT_CODEC.up_to(self.version), CLIENT_GREETING, opens=True)
        self.connection.write(link.hello())
        while (rest := link.greet(await self._read())) is None:
            pass
        if self.version == 5:
            self.connection.write(link.encode(Handshake(self.features).request))
            while (first := link.receive_first(rest)) is None:
                rest = await self._read()
            rest = first[1]
        link.opened()
        self.link = LogicalLink(link, self.features)
        self.heard += self.link.receive(rest)

    def say(self, *messages: Message) -> None:
        data = b"".join(map(self.link.encode, messages))
        self.connection.write(self.link.retain(data))

    async def hear(self, kind: type[Message]) -> Message:
        while True:
            for place, message in enumerate(self.heard):
                if isinstance(message, kind):
                    del self.heard[: place + 1]
                    return message
            self.heard = [*self.link.receive(await self._read())]

    async def mount(self, client: int = 7) -> None:
        """Return once the partition is mounted."""
        state = None
        while state is not MountState.READY:
            self.say(mount(client=client))
            answer = await self.hear(MountResponse)
            assert isinstance(answer, MountResponse)
            state = answer.state

    async def is_ended(self) -> str:
        """Return, once the server has ended the connection, what it said of that."""
        try:
            while True:
                self.heard += self.link.receive(await self._read())
        except EOFError:
            return self.link.end_reason or ""

    async def _read(self) -> bytes:
        if not (data := await self.connection.read()):
            raise EOFError
        return data


class Setting:
    """A server with the policy in a file, and hosts for those whom it names."""

    def __init__(self, host: Host, server: Server, files: TlsFiles, policy: Path) -> None:
        self.host = host
        self.server = server
        self.policy = policy
        self._files = files

    def someone(self, name: str) -> Host:
        host = self.someone_without_coordinator(name)
        return replace(host, coordinator=self.host.coordinator)

    def someone_without_coordinator(self, name: str) -> Host:
        """Return a host for another loop than that of the server."""
        settings = TlsSettings(self._files.issue(name), authorities=self._files.authorities)
        return real_host(None, settings)

    async def peer(self, name: str, version: int, *features: Feature) -> Peer:
        connection = await self.someone(name).network.connect(self.server.address)
        peer = Peer(connection, version, features)
        await peer.open()
        return peer

    def denials(self) -> dict[tuple[str, str], int]:
        standing = self.server.state().policy
        assert standing is not None
        return dict(standing.denials)


def play(
    directory: Path,
    scene: Callable[[Setting], Awaitable[None]],
    policy: str = POLICY,
    break_glass: Sequence[str] = (),
) -> None:
    files, path = TlsFiles(directory), directory / "policy.yaml"
    path.write_text(policy)

    async def main() -> None:
        async with running_server(
            directory,
            tls=files.peer(),
            access=AccessConfig(
                policy_path=str(path), break_glass=tuple(map(parse_pattern, break_glass))
            ),
            partition_count=PARTITION + 1,
        ) as (host, server):
            await until(lambda: sum(p.is_open for p in server.state().partitions) > PARTITION)
            await scene(Setting(host, server, files, path))

    asyncio.run(asyncio.wait_for(main(), 240.0))


def mark(server: Server) -> int | None:
    return server.state().partitions[PARTITION].high_water_mark


def with_header(number: int, header: int) -> Message:
    return replace(append(number), header=header)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_append_that_is_not_granted_ends_the_connection_and_nothing_is_written(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(setting: Setting) -> None:
        orders = await setting.peer("orders", version)
        await orders.mount()
        orders.say(with_header(1, 0))
        await until(lambda: mark(setting.server) == 0)
        orders.say(with_header(2, 0), with_header(3, 5), with_header(4, 0))
        ended = await orders.is_ended()
        reason = "no role of spiffe://tests/orders has append at partition 3 with header 5"
        assert ended == (f"denied: {reason}" if version == 5 else "")
        spark = await setting.peer("spark", version)
        await spark.mount()
        spark.say(with_header(1, 0))
        await spark.is_ended()
        assert mark(setting.server) == 0
        assert setting.denials() == {("append", "denied"): 2}
        lines = [each.getMessage() for each in caplog.records if "request_denied" in each.msg]
        assert "principal=spiffe://tests/orders verb=append partition=3" in lines[0]
        assert lines[0].endswith(f"reason={reason}")
        assert "principal=spiffe://tests/spark verb=append partition=3" in lines[1]

    play(tmp_path, scene)


@pytest.mark.parametrize("version", VERSIONS)
def test_who_is_granted_something_else_mounts_nothing(tmp_path: Path, version: int) -> None:
    async def scene(setting: Setting) -> None:
        ann = await setting.peer("ann", version)
        ann.say(mount())
        await ann.is_ended()
        assert not any(isinstance(each, MountResponse) for each in ann.heard)
        assert setting.server.state().partitions[PARTITION].mounts == 0
        assert setting.denials() == {("read", "denied"): 1}

    play(tmp_path, scene)


REFUSED = [
    (TopologyRequest(True), "connect", "nobody", 5),
    (ClientIdRequest(1), "connect", "nobody", 5),
    (ServerPartitionsAssignmentRequest(flush().request_id), "status", "spark", 4),
    (AddPreferredPartitionRequest(flush().request_id, (PARTITION,)), "prefer", "ann", 4),
    (HoldRequest(1, 5), "cut", "spark", 5),
]


@pytest.mark.parametrize(
    ("message", "verb", "name", "version"),
    REFUSED,
    ids=[type(each[0]).__name__ for each in REFUSED],
)
def test_what_changes_or_tells_of_a_cluster_needs_its_verb(
    tmp_path: Path, message: Message, verb: str, name: str, version: int
) -> None:
    async def scene(setting: Setting) -> None:
        before = setting.server.state().preferred_partitions
        peer = await setting.peer(name, version)
        peer.say(message)
        await peer.is_ended()
        assert peer.heard == []
        assert setting.denials() == {(verb, "denied"): 1}
        assert setting.server.state().preferred_partitions == before

    play(tmp_path, scene)


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_of_an_application_that_is_granted_notices_nothing(
    tmp_path: Path, version: int
) -> None:
    async def scene(setting: Setting) -> None:
        options = ClientOptions(protocol_version_max=version, partitions=[PARTITION])
        application = Recorder()
        async with AsyncWaltzClient(setting.someone("orders"), application, options) as client:
            assert [await client.append(PARTITION, b"%d" % each) for each in range(3)] == [0, 1, 2]
            await until(lambda: len(application.data) == 3)
        assert setting.denials() == {}

    play(tmp_path, scene)


@pytest.mark.parametrize("version", [0, 4, 5])
def test_a_policy_that_observes_serves_and_tells_what_it_would_deny(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(setting: Setting) -> None:
        nobody = await setting.peer("nobody", version)
        await nobody.mount()
        nobody.say(append(1))
        await until(lambda: mark(setting.server) == 0)
        nobody.say(append(2))
        await until(lambda: mark(setting.server) == 1)
        assert setting.denials()["append", "observed"] == 2
        assert {outcome for _, outcome in setting.denials()} == {"observed"}
        lines = [each.getMessage() for each in caplog.records if "would_be_denied" in each.msg]
        assert len(lines) == 2, "a line for the mount, and one for all appends"
        assert "principal=spiffe://tests/nobody verb=append partition=3" in lines[1]

    play(tmp_path, scene, POLICY.replace("mode: deny", "mode: observe"))


@pytest.mark.parametrize("version", [4, 5])
def test_another_policy_ends_who_has_mounted_what_is_granted_no_longer(
    tmp_path: Path, version: int
) -> None:
    async def scene(setting: Setting) -> None:
        spark, orders = await setting.peer("spark", version), await setting.peer("orders", version)
        await spark.mount()
        await orders.mount(client=8)
        setting.policy.write_text(POLICY.replace("partitions: all", "partitions: 1"))
        await spark.is_ended()
        assert setting.denials() == {("read", "denied"): 1}
        orders.say(flush(9, client=8))
        assert isinstance(await orders.hear(FlushResponse), FlushResponse)

    play(tmp_path, scene)


def test_whom_the_server_s_own_configuration_names_no_policy_denies(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        ops = await setting.peer("ops", 5)
        await ops.mount()
        ops.say(append(1))
        await until(lambda: mark(setting.server) == 0)
        assert setting.denials() == {}

    play(tmp_path, scene, break_glass=["spiffe://tests/ops"])


def test_a_broken_file_changes_nothing_and_the_log_names_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(setting: Setting) -> None:
        def standing() -> PolicyStanding:
            found = setting.server.state().policy
            assert found is not None
            return found

        spark = await setting.peer("spark", 5)
        await spark.mount()
        setting.policy.write_text(POLICY.replace("verbs: [read]", "verbs: [peruse]"))
        await until(lambda: standing().is_faulty)
        (line,) = [each.getMessage() for each in caplog.records if "not_taken" in each.msg]
        assert f"error={setting.policy}, line 7" in line
        spark.say(FlushRequest(flush(9).request_id))
        await spark.hear(FlushResponse)
        setting.policy.unlink()
        await asyncio.sleep(3 * POLICY_LOOK_SECONDS)
        assert (standing().version, standing().is_faulty) == (7, True)
        setting.policy.write_text(POLICY.replace("version: 7", "version: 8"))
        await until(lambda: standing().version == 8)
        assert not standing().is_faulty

    play(tmp_path, scene)


def test_a_server_does_not_start_with_a_file_that_has_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="line 3"):
        play(tmp_path, lambda _: asyncio.sleep(0), POLICY.replace("deny", "refuse", 1))


def test_without_the_key_nobody_is_denied_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with running_server(tmp_path) as (_, server):
            assert server.state().policy is None

    asyncio.run(main())
    assert any(each.getMessage().startswith("policy_absent") for each in caplog.records)
