"""Checks of TLS files: certificates made for the test, with times of its own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from waltz.cli.doctor.certificate_checks import (
    DAYS_LEFT_MIN,
    certificate_findings,
    utc_now,
    validity_finding,
)
from waltz.system.certificates import TLS_SELF_SIGNED_DAYS, self_signed_pair
from waltz.types import TlsSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("begins", "ends", "expected"),
    [
        (NOW - DAY, NOW + DAY * DAYS_LEFT_MIN, True),
        (NOW - DAY, NOW + DAY * DAYS_LEFT_MIN - timedelta(seconds=1), False),
        (NOW - DAY, NOW, False),
        (NOW + DAY, NOW + 400 * DAY, False),
    ],
)
def test_validity_is_judged_to_the_second(begins: datetime, ends: datetime, expected: bool) -> None:
    assert validity_finding("a", begins, ends, NOW).is_well is expected


def written(directory: Path, *, with_key: bool = True) -> TlsSettings:
    pair = self_signed_pair()
    path = directory / "pair.pem"
    path.write_bytes(pair.certificate + (pair.key if with_key else b""))
    return TlsSettings(certificate=str(path), authorities=str(path))


def test_files_that_fit_are_well_until_they_expire(tmp_path: Path) -> None:
    settings = written(tmp_path)
    now = utc_now()
    assert {each.is_well for each in certificate_findings(settings, now)} == {True}
    later = [*certificate_findings(settings, now + TLS_SELF_SIGNED_DAYS * DAY)]
    assert [each.check for each in later if each.is_well is False] == ["tls-expiry"] * 2


def test_a_certificate_without_its_key_is_named(tmp_path: Path) -> None:
    (found,) = certificate_findings(written(tmp_path, with_key=False), NOW)
    assert (found.check, found.is_well) == ("tls-files", False)
    assert "pair.pem" in found.subject


def test_without_files_nothing_is_said() -> None:
    assert [*certificate_findings(TlsSettings(), NOW)] == []
