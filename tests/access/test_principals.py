"""Principals, and the patterns that match them."""

from __future__ import annotations

import pytest

from waltz.access.principals import (
    ANONYMOUS_PRINCIPAL,
    is_principal,
    parse_pattern,
    principal_of,
    token_principal,
    user_principal,
)
from waltz.types import NAME_SOURCES, CertificateNames, LocalUser, NameSource

NAMES = CertificateNames(
    ("spiffe://prod/orders", "spiffe://prod/other"),
    ("Orders.Prod", "b"),
    ("orders", "second"),
    "O=Bank,CN=orders",
)


@pytest.mark.parametrize(
    ("sources", "principal"),
    [
        (NAME_SOURCES, "spiffe://prod/orders"),
        ((NameSource.DNS, NameSource.URI), "DNS=orders.prod"),
        ((NameSource.COMMON_NAME,), "CN=orders"),
        ((NameSource.DISTINGUISHED_NAME,), "DN=O=Bank,CN=orders"),
        ((), ANONYMOUS_PRINCIPAL),
    ],
)
def test_the_first_source_with_a_name_decides(
    sources: tuple[NameSource, ...], principal: str
) -> None:
    assert principal_of(NAMES, sources) == principal


def test_a_source_without_a_name_leaves_it_to_the_next_one() -> None:
    assert principal_of(NAMES._replace(uris=(), dns_names=())) == "CN=orders"


def test_a_peer_without_a_certificate_is_anonymous() -> None:
    assert principal_of(None) == principal_of(CertificateNames()) == ANONYMOUS_PRINCIPAL


@pytest.mark.parametrize(
    "uri", ["spiffe://prod/a\nb", "urn:x", "x" * 300, "CN=spark", "spiffe://", "token://a"]
)
def test_a_name_that_cannot_be_used_does_not_leave_it_to_another_one(uri: str) -> None:
    assert principal_of(NAMES._replace(uris=(uri,))) == ANONYMOUS_PRINCIPAL


def test_no_name_of_one_kind_is_a_principal_of_another() -> None:
    forged = CertificateNames(common_names=("spiffe://prod/orders",))
    assert principal_of(forged) == "CN=spiffe://prod/orders"
    assert principal_of(CertificateNames(common_names=("anonymous",))) == "CN=anonymous"
    assert principal_of(CertificateNames(uris=("token:spark",))) == ANONYMOUS_PRINCIPAL
    assert principal_of(CertificateNames(common_names=("token:spark",))) == "CN=token:spark"
    assert is_principal(token_principal("spark"))
    for name in ("user:ann", "uid:0", "user://ann", "uid://0"):
        assert principal_of(CertificateNames(uris=(name,))) == ANONYMOUS_PRINCIPAL
        assert principal_of(CertificateNames(common_names=(name,))) == f"CN={name}"


@pytest.mark.parametrize(
    ("user", "principal"),
    [
        (LocalUser(1000, "ann"), "user:ann"),
        (LocalUser(1000, "BANK\\ann"), "user:BANK\\ann"),
        (LocalUser(1000, "uid:0"), "user:uid:0"),
        (LocalUser(1000), "uid:1000"),
        (LocalUser(1000, "a\nb"), "uid:1000"),
        (LocalUser(1000, "x" * 300), "uid:1000"),
    ],
)
def test_a_local_user_is_a_name_or_else_a_number(user: LocalUser, principal: str) -> None:
    assert user_principal(user) == principal
    assert is_principal(principal)


@pytest.mark.parametrize(
    ("pattern", "matched", "unmatched"),
    [
        ("CN=waltz-*", ["CN=waltz-", "CN=waltz-1"], ["CN=waltz", "DNS=waltz-1", "DN=CN=waltz-1"]),
        ("DNS=*.prod", ["DNS=a.prod", "DNS=.prod"], ["DNS=prod", "DNS=a.prod.x"]),
        ("CN=ab*ba", ["CN=abba", "CN=abxba"], ["CN=aba"]),
        ("CN=a", ["CN=a"], ["CN=A", "CN=a "]),
        ("anonymous", ["anonymous"], ["CN=anonymous"]),
        ("user:svc-*", ["user:svc-1"], ["CN=user:svc-1", "uid:svc-1", "token:svc-1"]),
        ("uid:0", ["uid:0"], ["uid:00", "user:0"]),
        ("token:spark-*", ["token:spark-1"], ["CN=token:spark-1", "token:spark"]),
    ],
)
def test_a_pattern_matches_principals_of_its_kind(
    pattern: str, matched: list[str], unmatched: list[str]
) -> None:
    parsed = parse_pattern(pattern)
    assert all(map(parsed.matches, matched))
    assert not any(map(parsed.matches, unmatched))


@pytest.mark.parametrize(
    "text", ["spark", "*", "CN=", "C*=x", "*://prod", "CN=a*b*", "DNS=Big", "anon*", "CN=a\tb", ""]
)
def test_a_pattern_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected scheme"):
        parse_pattern(text)
