"""Both sides judge certificates: whose they are, for which host, until when, and new files."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from tests.system.conftest import Run
from tests.system.greeters import (
    LOOPBACK,
    conversation,
    greet,
    greeter,
    java_context,
    raw_talk,
    talk,
)
from tests.tls_files import TlsFiles
from waltz.errors import ConnectionFailedError
from waltz.system import tls as tls_module
from waltz.system.tcp_network import RealNetwork
from waltz.types import Plain, TlsSettings


def test_both_sides_show_and_judge_certificates(run: Run, tls_files: TlsFiles) -> None:
    """TS-02: the right ones work, and are asked for by both sides."""

    async def story() -> None:
        async with greeter(tls_files.peer()) as address:
            assert await talk(tls_files.peer(), address) == b"hello you"

    run(story())


def refusal(run: Run, server: TlsSettings, client: TlsSettings) -> str:
    """Return why `client` cannot connect to `server`."""
    reasons = []

    async def story() -> None:
        async with greeter(server) as address:
            with pytest.raises(ConnectionFailedError, match=f"no connection to {address}") as found:
                await RealNetwork(client).connect(address)
            reasons.append(str(found.value))

    run(story())
    return reasons[0]


def test_an_unknown_authority_is_refused_by_the_client(run: Run, tmp_path: Path) -> None:
    """TS-02: wrong certificate."""
    ours, theirs = TlsFiles(tmp_path), TlsFiles(tmp_path)
    reason = refusal(run, ours.peer(), theirs.peer())
    assert f"its certificate is signed by none of the CAs in {theirs.authorities}" in reason


def test_an_unknown_authority_is_refused_by_the_server(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TS-02: in TLS 1.3 the client learns of it only after its own side is done."""
    ours, theirs = TlsFiles(tmp_path), TlsFiles(tmp_path)
    reason = refusal(run, ours.peer(), theirs.believing(ours))
    assert "it does not trust this side's certificate" in reason
    assert f"its certificate is signed by none of the CAs in {ours.authorities}" in caplog.text


@pytest.mark.parametrize("java", [False, True])
def test_a_client_without_a_certificate_is_refused(
    run: Run, tls_files: TlsFiles, java: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """TS-02: a CA on the accepting side makes it ask."""

    async def story() -> None:
        async with greeter(tls_files.peer()) as address:
            if java:
                with pytest.raises(OSError):  # noqa: PT011 -- whichever way the end is seen
                    await asyncio.open_connection(
                        address.host, address.port, ssl=java_context(ssl.PROTOCOL_TLS_CLIENT)
                    )
            else:
                with pytest.raises(ConnectionFailedError, match="demands a certificate"):
                    await RealNetwork(TlsSettings(authorities=tls_files.authorities)).connect(
                        address
                    )

    run(story())
    assert "it showed no certificate" in caplog.text


def test_a_certificate_for_another_host_is_refused_unless_that_is_switched_off(
    run: Run, tls_files: TlsFiles
) -> None:
    """TS-05."""
    server, client = tls_files.peer("elsewhere.example"), tls_files.peer()
    assert "its certificate is for another host" in refusal(run, server, client)

    async def story() -> None:
        async with greeter(server) as address:
            assert await talk(replace(client, verify_host_name=False), address) == b"hello you"

    run(story())


def test_a_certificate_is_for_the_name_that_was_resolved(run: Run, tls_files: TlsFiles) -> None:
    """TS-05, LC-02, LC-22: a client looks names up itself, and connects to what it has found."""
    client = RealNetwork(tls_files.peer())

    async def story() -> None:
        async with greeter(tls_files.peer("db.example")) as address:
            with pytest.raises(ConnectionFailedError, match="for another host"):
                await client.connect(address)
            with pytest.raises(ConnectionFailedError, match="for another host"):
                await client.connect(address, name="other.example")
            (await client.connect(address, name="db.example")).close()

    run(story())


def test_an_expired_certificate_is_refused(run: Run, tmp_path: Path) -> None:
    expired = TlsFiles(tmp_path, days_ago=400)
    settings = expired.peer()
    assert "its certificate has expired; renew it" in refusal(run, settings, settings)


def test_plain_is_refused_where_only_tls_is_taken(
    run: Run, tls_files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """TS-01: with a certificate configured not even from loopback."""

    async def story() -> None:
        async with greeter(tls_files.peer()) as address:
            connection = await RealNetwork(TlsSettings(plain=Plain.ALWAYS)).connect(address)
            assert await conversation(connection) == b""
            assert (await raw_talk(address, b"H"))[:1] == b"\x15"

    run(story())
    assert "it speaks plain, and this side takes only TLS from its address" in caplog.text
    assert "it takes TLS only, and this side speaks plain" in caplog.text


def test_new_files_are_taken_without_a_restart(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TS-07: new connections see the new ones, old connections live on."""
    monkeypatch.setattr(tls_module, "TLS_LOOK_SECONDS", 0.0)
    old, new = TlsFiles(tmp_path), TlsFiles(tmp_path)
    server = old.peer()
    assert server.certificate is not None
    assert server.authorities is not None

    async def story() -> None:
        async with greeter(server) as address:
            living = await RealNetwork(old.peer()).connect(address)
            replace_file(new.issue("renewed", "127.0.0.1"), server.certificate)
            with pytest.raises(ConnectionFailedError, match="signed by none of the CAs"):
                await RealNetwork(old.peer()).connect(address)
            replace_file(new.authorities, server.authorities)
            assert await talk(new.peer(), address) == b"hello you"
            assert await conversation(living) == b"hello you"

            replace_file(__file__, server.certificate)
            assert await talk(new.peer(), address) == b"hello you"
            assert await talk(new.peer(), address) == b"hello you"

    run(story())
    assert caplog.text.count("tls_files_not_taken") == 1
    assert "is not PEM" in caplog.text


def replace_file(source: str | None, target: str | None) -> None:
    assert source is not None
    assert target is not None
    shutil.copy(source, f"{target}.new")
    Path(f"{target}.new").replace(target)


def test_the_two_roles_of_a_server_have_certificates_of_their_own(run: Run, tmp_path: Path) -> None:
    """Towards clients one CA, towards storage nodes another."""
    clients, storages = TlsFiles(tmp_path), TlsFiles(tmp_path)

    async def story() -> None:
        server = RealNetwork(listening=clients.peer(), connecting=storages.peer())
        listener = await server.listen(LOOPBACK, greet)
        assert await talk(clients.peer(), listener.address) == b"hello you"
        with pytest.raises(ConnectionFailedError, match="signed by none of the CAs"):
            await talk(storages.peer(), listener.address)
        async with greeter(storages.peer()) as storage_node:
            assert await conversation(await server.connect(storage_node)) == b"hello you"
        await listener.close()

    run(story())
