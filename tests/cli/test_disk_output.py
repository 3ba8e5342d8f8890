"""What the commands of `waltz disk` share."""

from __future__ import annotations

import pytest

from waltz.cli.disk_output import (
    human_bytes,
    shown,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (160_356, "156.6 KiB"),
        (1024**2, "1.0 MiB"),
        (1_000_000_000, "953.7 MiB"),
        (5 * 1024**3, "5.0 GiB"),
        (3 * 1024**4, "3.0 TiB"),
        (9 * 1024**5, "9216.0 TiB"),
    ],
)
def test_bytes_are_readable(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_what_nobody_knows_is_a_dash() -> None:
    assert (shown(None), shown(-1), shown(0)) == ("-", "-1", "0")
