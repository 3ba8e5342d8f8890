"""With which code a command ends."""

from __future__ import annotations

from waltz.cli.exit_codes import UNCONFIRMED, exit_code


def test_what_is_not_known_ends_neither_like_well_nor_like_wrong() -> None:
    assert (exit_code(True), exit_code(False), exit_code(None)) == (0, 1, UNCONFIRMED)
    assert UNCONFIRMED not in (0, 1, 2)
