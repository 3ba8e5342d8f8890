"""A sample of the attacks on running processes, and proof that they are what they should be.

`make fuzz-servers` sends a million.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from tests.fuzz.attacks import CODECS, KINDS, Target, attack
from tests.fuzz.processes import BAD, fuzz_processes
from tests.shares import one_in
from waltz.errors import RemoteProtocolError
from waltz.wire.handshake import Link

FRAMES = (1_000, 20_000)
"""The processes count in a line a minute later whom they have not named: the long one waits."""


@pytest.mark.processes
@pytest.mark.parametrize("frames", one_in(2, FRAMES))
def test_no_peer_ends_a_server_or_a_storage_node_or_takes_its_memory(
    tmp_path: Path, frames: int
) -> None:
    """SN-07, SV-02: every port, every kind; they say why they end one, and serve others."""
    found = fuzz_processes(tmp_path / "cluster", frames, "a sample", counts=frames > FRAMES[0])
    assert found.failures == []
    assert found.attacks == frames
    for port in CODECS:
        assert any(how.startswith(port) and how.endswith("by them") for how in found.ended)


@pytest.mark.parametrize("port", CODECS)
def test_an_attack_is_made_by_its_seed_alone_and_every_kind_comes(port: str) -> None:
    target = Target(port, UUID(int=3))
    attacks = [attack(target, f"a {number}") for number in range(300)]
    assert attacks == [attack(target, f"a {number}") for number in range(300)]
    kinds = Counter(each.kind for each in attacks)
    assert kinds.keys() == KINDS.keys()
    assert len({each.data for each in attacks}) > 150


@pytest.mark.parametrize("port", CODECS)
def test_what_opens_a_connection_is_sound(port: str) -> None:
    """Attacks that were refused at the door would show little."""
    target = Target(port, UUID(int=3))
    opened = 0
    for number in range(200):
        link = Link(target.codec, "a test")
        link.hello()
        try:
            opened += len(link.receive(attack(target, f"a {number}").data)) > 0
        except RemoteProtocolError:
            opened += link.version is not None
    assert opened > 100


@pytest.mark.parametrize(
    ("line", "is_bad"),
    [
        (
            "2026-11-21T19:40:40.531 ERROR waltz.storage.upkeep_shell partition_ended partition=4",
            True,
        ),
        ("Traceback (most recent call last):", True),
        ("2026-11-21T19:40:40 WARNING connection_refused error='an ERROR Exception: x'", False),
    ],
)
def test_what_a_process_says_of_a_bug_is_told_from_what_peers_made_it_say(
    line: str, is_bad: bool
) -> None:
    assert bool(BAD.search(line)) is is_bad
