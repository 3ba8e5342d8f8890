"""Who a connection is from, for every kind of peer and of server."""

from __future__ import annotations

from itertools import product

import pytest

from waltz.server.clients.identification import (
    NOBODY,
    PLAIN,
    UNKNOWN_TOKEN,
    Identification,
    Identified,
    Unidentified,
)
from waltz.types import CertificateNames, LocalUser

GOOD, BAD = "good", "bad"
CERTIFICATE = CertificateNames(common_names=("orders",))
NAMELESS = CertificateNames()


def name_of(token: str) -> str | None:
    return {GOOD: "spark"}.get(token)


def simpler(
    certificate: CertificateNames | None,
    shown: str | None,
    is_encrypted: bool,
    takes: bool,
    demands: bool,
) -> Identified | Unidentified:
    """The rule as a table, the first line that fits."""
    lines = (
        (certificate is CERTIFICATE, Identified("CN=orders")),
        (certificate is NAMELESS, Identified("anonymous")),
        (takes and shown is not None and not is_encrypted, Unidentified(PLAIN)),
        (takes and shown == GOOD, Identified("token:spark", by_token=True)),
        (takes and shown == BAD, Unidentified(UNKNOWN_TOKEN)),
        (demands and is_encrypted, Unidentified(NOBODY)),
        (True, Identified("anonymous")),
    )
    return next(found for fits, found in lines if fits)


def test_everybody_is_who_the_table_says() -> None:
    flags = (False, True)
    for certificate, shown, is_encrypted, takes, demands in product(
        (None, CERTIFICATE, NAMELESS), (None, GOOD, BAD), flags, flags, flags
    ):
        rule = Identification(token_name=name_of if takes else None, demands_identity=demands)
        found = rule.of(certificate, shown, is_encrypted=is_encrypted)
        assert found == simpler(certificate, shown, is_encrypted, takes, demands)
        local = rule.of(certificate, shown, is_encrypted=is_encrypted, user=LocalUser(7, "ann"))
        assert local == Identified("user:ann"), "a user is that user, whatever else is shown"


@pytest.mark.parametrize("reason", [PLAIN, UNKNOWN_TOKEN, NOBODY])
def test_a_reason_shows_no_token(reason: str) -> None:
    assert GOOD not in reason
    assert BAD not in reason
