"""Every story comes out as told, whatever the timing; and the teller can tell when one does not.

Rows: those that each story names in its title.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from tests.scenarios.language import EVENTS, STATES, parse_story
from tests.scenarios.runner import quiet, read_story, stories, tell

SEEDS = range(5)

SHORT = """# A short one (ST-02)
a cluster of 3 storages, 1 server and 1 partition
client-1 starts
client-1 writes 3 transactions
"""


@pytest.mark.parametrize(
    ("path", "seed"),
    [
        pytest.param(path, seed, id=f"{path.stem}-{seed}", marks=[pytest.mark.long] * (seed > 0))
        for path, seed in product(stories(), SEEDS)
    ],
)
def test_a_story_comes_out_as_told(path: Path, seed: int) -> None:
    with quiet():
        telling = tell(read_story(path), seed)
    assert not telling.violations, "\n".join([*telling.lines, *telling.violations])


def test_every_phrase_is_told_somewhere() -> None:
    told = {step.phrase for path in stories() for step in read_story(path).steps}
    never = [phrase.text for phrase in (*EVENTS, *STATES) if phrase not in told]
    assert not never, f"no story says {never}"


def test_one_seed_is_one_telling() -> None:
    story = read_story(Path(__file__).parent / "replacing_a_replica.txt")
    with quiet():
        digests = [tell(story, seed).digest for seed in (1, 2, 1)]
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("the log is 0 to 3", "line 5: the log is 0 to 3: after 0 s it is 0 to 2"),
        ("eventually the session is 7", r"line 5: .*: after 1\d\d s it is 0"),
        ("storage-0 starts again", "storage-0 is running"),
        ("the replicas are storage-0", "they are storage-0"),
        ("client-1 has applied nothing", r"it has applied \[0, 1, 2\]"),
        ("storage-0 takes part in partition 1", "NoNodeError"),
    ],
)
def test_what_is_not_so_is_told_with_the_line_and_what_is_instead(line: str, what: str) -> None:
    story = parse_story("short.txt", f"{SHORT}{line}")
    with quiet():
        (violation,) = tell(story, 1).violations
    assert violation.startswith("short.txt: line 5: ")
    assert re.search(what, violation), violation


def test_what_is_not_so_after_a_while_is_found() -> None:
    text = f"{SHORT}client-1 stops applying\nclient-1 submits x\nfor 20 seconds the log is 0 to 2"
    with quiet():
        (violation,) = tell(parse_story("short.txt", text), 1).violations
    assert "line 7: for 20 seconds the log is 0 to 2: after " in violation


def test_a_story_must_not_end_with_a_log_that_cannot_be_read() -> None:
    # What the server remembers it would tell without its storage nodes; so it is to forget.
    killed = "storage-0 is killed\nstorage-1 is killed\nserver-0 is killed"
    text = f"{SHORT}{killed}\nserver-0 starts again"
    with quiet():
        (violation,) = tell(parse_story("short.txt", text), 1).violations
    assert violation.startswith("short.txt: in the end the log cannot be read: ")
