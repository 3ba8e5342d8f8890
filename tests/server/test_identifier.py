"""What an arrival is told that has not shown who it is from."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.server.test_arrivals_shell import Said
from waltz.peer_log import PeerLog
from waltz.server.clients.arrivals_shell import Arrival
from waltz.server.clients.identification import NOBODY, Identification, Identified
from waltz.server.clients.identifier import Identifier
from waltz.types import CertificateNames
from waltz.wire.client_protocol import CLIENT_CODEC, SERVER_GREETING
from waltz.wire.handshake import Link


class Encrypted(Said):
    is_encrypted = True


def test_an_old_version_is_told_nothing_and_everybody_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        log = PeerLog(logging.getLogger("waltz.test"), asyncio.get_running_loop)
        identifier = Identifier(Identification(demands_identity=True), log)
        link = Link(CLIENT_CODEC, SERVER_GREETING, opens=True)
        stranger = Encrypted([])
        for count in (1, 2):
            assert identifier.identified(Arrival(stranger, link, b"", None)) is None
            assert (identifier.refusals, stranger.written) == (count, b"")
        known = Encrypted([])
        known.certificate = CertificateNames(common_names=("orders",))
        assert identifier.identified(Arrival(known, link, b"", None)) == Identified("CN=orders")
        assert identifier.refusals == 2

    asyncio.run(main())
    assert f"client_unidentified peer=said reason={NOBODY}" in caplog.text
