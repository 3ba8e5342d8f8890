"""The keys of an archive."""

from __future__ import annotations

import pytest

from waltz.configuration.archive_settings import (
    EVERY,
    HTTP_ADDRESS,
    PARTITIONS,
    RATE,
    archive_settings,
    http_address,
)
from waltz.configuration.settings import Given
from waltz.errors import ConfigurationError
from waltz.types import Address


def judged(**values: object):  # type: ignore[no-untyped-def]
    given = {"archive.target": "file:///a", "coordinator.address": "127.0.0.1:1"} | {
        f"archive.{name}": value for name, value in values.items()
    }
    return archive_settings({name: Given(value, "file") for name, value in given.items()})


def test_what_is_not_set_has_a_default() -> None:
    settings = judged()
    assert settings[EVERY] == 10
    assert settings.get(PARTITIONS) is settings.get(RATE) is http_address(settings) is None


def test_values_are_taken_as_they_are_meant() -> None:
    settings = judged(partitions=[3, 1], httpAddress="127.0.0.1:80", rateBytesPerSecond=1024)
    assert settings.get(PARTITIONS) == {1, 3}
    assert http_address(settings) == Address("127.0.0.1", 80) == settings.get(HTTP_ADDRESS)
    assert "archive.partitions: [1, 3]  # file" in list(settings.lines())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", []),
        ("partitions", [-1]),
        ("partitions", [True]),
        ("partitions", 3),
        ("every", 0),
        ("objectBytes", 1 << 30),
        ("objectBytes", 1),
        ("verifyReplicas", -1),
        ("rateBytesPerSecond", 0),
        ("httpAddress", "x"),
    ],
)
def test_other_values_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"archive.{name}"):
        judged(**{name: value})


def test_credentials_are_no_keys() -> None:
    settings = judged(credentials="secret")
    assert any("archive.credentials" in each for each in settings.warnings)
    assert "secret" not in "".join([*settings.warnings, *settings.lines()])
