"""The public names are loaded one by one, and all of them are there."""

from __future__ import annotations

import operator
import subprocess
import sys

import pytest

import waltz
from tests.client.telling_servers import closed_port


def test_importing_waltz_imports_no_part_of_it() -> None:
    program = (
        "import sys, waltz; print([each for each in sys.modules"
        " if each.startswith('waltz.') or each in ('numpy', 'asyncio')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_every_public_name_can_be_loaded() -> None:
    assert len(waltz.__all__) > 70
    for name in waltz.__all__:
        assert getattr(waltz, name) is not None
        assert name in dir(waltz)


def test_a_name_that_is_not_public_is_refused() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        operator.attrgetter("no_such_name")(waltz)


def test_notes_and_replicas_say_why_no_server_told_them_of_the_coordinator() -> None:
    """F-36."""
    closed = str(closed_port())
    for opened in (waltz.open_notes, waltz.open_replicas):
        with pytest.raises(waltz.UnavailableError, match="no server of waltz://") as raised:
            opened(f"waltz://{closed}")
        assert f"{closed}: " in str(raised.value)
        assert "Give the coordinator's address" in str(raised.value)
