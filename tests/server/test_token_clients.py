"""Clients that are known by a bearer token, at a real server: over TLS, in each version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import until
from tests.server.builders import PARTITION, append, mount
from tests.server.real_server import running_server
from tests.server.test_enforcement_shell import Peer
from tests.tls_files import TlsFiles
from waltz.access.policy_watch_shell import AccessConfig
from waltz.bearer_tokens import TOKEN_FILE_BYTES_MAX, line_of, token_of
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.connections.connection_shell import RESTORED, ServerConnection
from waltz.connections.logical_handshake import Handshake
from waltz.errors import (
    ConfigurationError,
    HandshakeRefusedError,
    PermissionDeniedError,
    UnavailableError,
)
from waltz.host import Host
from waltz.server.clients.identification import NOBODY, PLAIN, UNKNOWN_TOKEN
from waltz.server.server_shell import Server
from waltz.system import token_file as token_module
from waltz.system.real_host import real_host
from waltz.system.token_file import TokenFile
from waltz.types import Plain, TlsSettings
from waltz.wire.client_protocol import CLIENT_CODEC, CLIENT_GREETING
from waltz.wire.handshake import Link
from waltz.wire.lifecycle_protocol import (
    BEARER_TOKEN_BYTES_MAX,
    MAGIC_BYTES,
    ConnectionRestoreRequest,
    ConnectionRestoreResponse,
    Feature,
    HandshakeCode,
    HandshakeResponse,
)

TOKEN, OTHER, STRANGE = (token_of(bytes([each]) * 32) for each in (1, 2, 3))
POLICY = """
version: 1
mode: deny
default: deny
roles:
  orders: {verbs: [append, read], partitions: 3, headers: 0}
  reader: {verbs: [read], partitions: all}
grants:
  "token:orders": [orders]
  "token:spark*": [reader]
  "spiffe://tests/orders": [orders]
"""


class Setting:
    def __init__(self, host: Host, server: Server, files: TlsFiles, tokens: Path) -> None:
        self.host = host
        self.server = server
        self.tokens = tokens
        self.files = files

    def someone(self, token: str | None = None, certificate: str | None = None) -> Host:
        settings = TlsSettings(
            None if certificate is None else self.files.issue(certificate),
            authorities=self.files.authorities,
            token=token,
        )
        return replace(real_host(None, settings), coordinator=self.host.coordinator)

    async def principals(self) -> list[str]:
        return [each.principal for each in self.server._clients]


def play(
    directory: Path,
    scene: Callable[[Setting], Awaitable[None]],
    *,
    plain: Plain | None = None,
    demands_identity: bool = True,
) -> None:
    """Run `scene` with a server that takes tokens; with `demands_identity` it has the CA, and so
    asks for certificates."""
    files, policy, tokens = TlsFiles(directory), directory / "policy.yaml", directory / "tokens"
    policy.write_text(POLICY)
    tokens.write_text(f"{line_of('orders', TOKEN)}\n{line_of('spark-1', OTHER)}\n")
    tls = replace(files.peer(), plain=plain, takes_tokens=True)
    if not demands_identity:
        tls = replace(tls, authorities=None)

    async def main() -> None:
        access = AccessConfig(
            policy_path=str(policy),
            token_name=TokenFile(str(tokens)).name_of,
            demands_identity=demands_identity,
        )
        async with running_server(
            directory, tls=tls, access=access, partition_count=PARTITION + 1
        ) as (host, server):
            await until(lambda: sum(p.is_open for p in server.state().partitions) > PARTITION)
            await scene(Setting(host, server, files, tokens))

    asyncio.run(asyncio.wait_for(main(), 240.0))


async def opened(host: Host, setting: Setting) -> ServerConnection:
    return await ServerConnection.open(host, setting.server.address, RESTORED)


@pytest.mark.parametrize("demands_identity", [False, True])
def test_a_client_with_a_token_may_do_what_its_name_is_granted(
    tmp_path: Path, demands_identity: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")

    async def scene(setting: Setting) -> None:
        options = ClientOptions(partitions=[PARTITION])
        application = Recorder()
        async with AsyncWaltzClient(setting.someone(TOKEN), application, options) as client:
            assert [await client.append(PARTITION, b"%d" % each) for each in range(3)] == [0, 1, 2]
            await until(lambda: len(application.data) == 3)
            assert set(await setting.principals()) == {"token:orders"}
        async with AsyncWaltzClient(setting.someone(OTHER), Recorder(), options) as reader:
            with pytest.raises(PermissionDeniedError) as raised:
                await reader.append(PARTITION, b"x")
            assert raised.value.principal == "token:spark-1"
        assert setting.server.state().unidentified == 0

    play(tmp_path, scene, demands_identity=demands_identity)
    assert TOKEN not in caplog.text
    assert OTHER not in caplog.text


def test_a_token_that_is_not_known_is_refused_by_name_counted_and_shown_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")

    async def scene(setting: Setting) -> None:
        with pytest.raises(HandshakeRefusedError, match=UNKNOWN_TOKEN) as raised:
            await opened(setting.someone(STRANGE), setting)
        assert STRANGE not in str(raised.value)
        assert setting.server.state().unidentified == 1
        assert len(list(setting.server._clients)) == 0

    play(tmp_path, scene)
    assert f"reason={UNKNOWN_TOKEN}" in caplog.text
    assert "client_unidentified peer=127.0.0.1:" in caplog.text
    assert STRANGE not in caplog.text


def test_a_server_with_a_ca_wants_a_certificate_or_a_token(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        with pytest.raises(HandshakeRefusedError, match="neither a certificate nor a bearer"):
            await opened(setting.someone(), setting)
        (await opened(setting.someone(certificate="orders"), setting)).close()

    play(tmp_path, scene)


@pytest.mark.parametrize("version", CLIENT_CODEC.versions[:-1])
def test_an_older_version_has_no_place_for_a_token_and_is_not_served_without_a_certificate(
    tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(setting: Setting) -> None:
        for host in (setting.someone(), setting.someone(TOKEN)):
            peer = Peer(await host.network.connect(setting.server.address), version)
            await peer.open()
            peer.say(mount(), append(1))
            await peer.is_ended()
            assert peer.heard == []
        assert setting.server.state().unidentified == 2
        assert setting.server.state().partitions[PARTITION].mounts == 0
        known = setting.someone(certificate="orders")
        peer = Peer(await known.network.connect(setting.server.address), version)
        await peer.open()
        await peer.mount()

    play(tmp_path, scene)
    assert NOBODY in caplog.text


def test_a_certificate_counts_whatever_token_comes_with_it(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        for token in (OTHER, STRANGE):
            there = await opened(setting.someone(token, certificate="orders"), setting)
            assert await setting.principals() == ["spiffe://tests/orders"]
            there.close()
            await until(lambda: len(list(setting.server._clients)) == 0)

    play(tmp_path, scene)


async def answer_to(
    host: Host, setting: Setting, extensions: Sequence[tuple[str, bytes]]
) -> HandshakeResponse:
    """Return the answer to a handshake with these extensions."""
    connection = await host.network.connect(setting.server.address)
    link = Link(CLIENT_CODEC, CLIENT_GREETING, opens=True)
    connection.write(link.hello())
    while (rest := link.greet(await connection.read())) is None:
        pass
    request = replace(Handshake(()).request, extensions=tuple(extensions))
    connection.write(link.encode(request))
    while (first := link.receive_first(rest)) is None:
        rest = await connection.read()
    connection.close()
    answer, _ = first
    assert isinstance(answer, HandshakeResponse)
    return answer


def test_a_token_in_plain_is_refused_and_the_client_sends_none(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        plain = replace(real_host(None), coordinator=setting.host.coordinator)
        answer = await answer_to(plain, setting, [("waltz.token", TOKEN.encode())])
        assert (answer.error_code, answer.text) == (HandshakeCode.TOKEN, PLAIN)
        settings = TlsSettings(
            authorities=setting.files.authorities, token=TOKEN, plain=Plain.LOOPBACK
        )
        careless = replace(real_host(None, settings), coordinator=setting.host.coordinator)
        there = await opened(careless, setting)
        assert await setting.principals() == ["anonymous"]
        there.close()

    play(tmp_path, scene, plain=Plain.LOOPBACK)


@pytest.mark.parametrize(
    "shown",
    [b"", b"\xff" * 40, TOKEN.encode()[:-1], TOKEN.encode() + b"\n", b"x" * BEARER_TOKEN_BYTES_MAX],
)
def test_what_is_no_token_is_refused(tmp_path: Path, shown: bytes) -> None:
    async def scene(setting: Setting) -> None:
        host = setting.someone()
        for text in (shown, b"x" * (BEARER_TOKEN_BYTES_MAX + 1), b"y" * 16_000):
            answer = await answer_to(host, setting, [("waltz.token", text)])
            assert (answer.error_code, answer.text) == (HandshakeCode.TOKEN, UNKNOWN_TOKEN)
            assert answer.cluster_key == answer.connection_id
            assert answer.cluster_key.int == 0, "nothing is told of the cluster"

    play(tmp_path, scene)


def test_a_connection_by_token_cannot_be_restored_by_somebody_who_learns_its_id(
    tmp_path: Path,
) -> None:
    """A restore request has no place for a token."""

    async def scene(setting: Setting) -> None:
        there = await opened(setting.someone(TOKEN), setting)
        assert there.agreement is not None
        assert Feature.RESTORE not in there.agreement.features
        for host in (setting.someone(), setting.someone(certificate="orders")):
            connection = await host.network.connect(setting.server.address)
            link = Link(CLIENT_CODEC, CLIENT_GREETING, opens=True)
            connection.write(link.hello())
            while (rest := link.greet(await connection.read())) is None:
                pass
            request = ConnectionRestoreRequest(MAGIC_BYTES, there.agreement.connection_id, 0, 1)
            connection.write(link.encode(request))
            while (first := link.receive_first(rest)) is None:
                rest = await connection.read()
            answer, _ = first
            assert isinstance(answer, ConnectionRestoreResponse)
            assert not answer.restored
            connection.close()
        assert await setting.principals() == ["token:orders"]
        there.close()

    play(tmp_path, scene)


def test_a_client_whose_connection_breaks_mounts_again_with_its_token(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        options = ClientOptions(partitions=[PARTITION])
        async with AsyncWaltzClient(setting.someone(TOKEN), Recorder(), options) as client:
            assert await client.append(PARTITION, b"before") == 0
            for each in list(setting.server._clients):
                assert each.connection is not None
                each.connection.close()
            assert await client.append(PARTITION, b"after") == 1

    play(tmp_path, scene)


def test_a_token_that_is_taken_out_of_the_file_opens_no_further_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_module, "TOKENS_LOOK_SECONDS", 0.0)

    async def scene(setting: Setting) -> None:
        (await opened(setting.someone(TOKEN), setting)).close()
        new = setting.tokens.with_suffix(".new")
        new.write_text(line_of("orders", STRANGE))
        new.replace(setting.tokens)
        with pytest.raises(HandshakeRefusedError):
            await opened(setting.someone(TOKEN), setting)
        (await opened(setting.someone(STRANGE), setting)).close()
        new.write_bytes(b"#" * (TOKEN_FILE_BYTES_MAX + 1))
        new.replace(setting.tokens)
        (await opened(setting.someone(STRANGE), setting)).close()

    play(tmp_path, scene)


def test_a_server_that_takes_no_tokens_skips_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    files = TlsFiles(tmp_path)

    async def main() -> None:
        tls = TlsSettings(files.issue("server", "127.0.0.1"))
        async with running_server(tmp_path, tls=tls) as (host, server):
            settings = TlsSettings(authorities=files.authorities, token=TOKEN)
            client = replace(real_host(None, settings), coordinator=host.coordinator)
            there = await ServerConnection.open(client, server.address, RESTORED)
            assert [each.principal for each in server._clients] == ["anonymous"]
            there.close()

    asyncio.run(main())
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (TlsSettings(token=TOKEN), "every server that answers would be sent the token"),
        (TlsSettings(token="hunter2"), "the token for servers is none"),
        (TlsSettings(token_file="token"), "every server that answers would be sent the token"),
        (TlsSettings(authorities="ca", token=TOKEN, token_file="token"), "or its file, not both"),
    ],
)
def test_a_client_that_would_give_its_token_away_does_not_start(
    settings: TlsSettings, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        real_host(None, settings)
    for secret in (TOKEN, "hunter2"):
        assert secret not in str(raised.value)
        assert secret not in repr(settings)


def test_a_token_in_a_file_is_read_again_when_the_file_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("waltz.system.tls.TLS_LOOK_SECONDS", 0.0)
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")

    async def scene(setting: Setting) -> None:
        settings = TlsSettings(authorities=setting.files.authorities, token_file=str(path))
        host = replace(real_host(None, settings), coordinator=setting.host.coordinator)
        for content, principal in (
            (f"{TOKEN}\n", "token:orders"),
            (f"{OTHER}\n", "token:spark-1"),
            ("", "token:spark-1"),  # no token: the one read before stays in force
        ):
            path.write_text(content)
            there = await opened(host, setting)
            assert await setting.principals() == [principal]
            there.close()
            await until(lambda: not setting.server._clients)

    play(tmp_path, scene)
    assert "tls_files_not_taken" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("content", [b"", b"hunter2", TOKEN.encode() * 3, b"\xff" * 40, None])
def test_a_file_without_a_token_is_refused_and_not_shown(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    authorities = TlsFiles(tmp_path).authorities
    with pytest.raises(ConfigurationError) as refused:
        real_host(None, TlsSettings(authorities=authorities, token_file=str(path)))
    said = f"{path} has no token; expected what `waltz policy token` printed, on one line"
    assert str(refused.value) == (
        f"cannot read {path}: No such file or directory" if content is None else said
    )


def test_a_server_of_another_ca_is_not_shown_the_token(tmp_path: Path) -> None:
    async def scene(setting: Setting) -> None:
        stranger = TlsFiles(tmp_path)
        settings = TlsSettings(authorities=stranger.authorities, token=TOKEN)
        host = replace(real_host(None, settings), coordinator=setting.host.coordinator)
        with pytest.raises(UnavailableError):
            await opened(host, setting)
        assert setting.server.state().unidentified == 0

    play(tmp_path, scene)
