"""The language of stories is strict: what it does not know it does not guess."""

from __future__ import annotations

import pytest

from tests.scenarios.language import (
    CLUSTER,
    EVENTS,
    STATES,
    Locks,
    Manner,
    Phrase,
    Range,
    Step,
    StoryError,
    parse_story,
)
from tests.scenarios.stage import Stage
from tests.scenarios.states import States

HEAD = "# A title (ST-01)\na cluster of 3 storages, 1 server and 2 partitions\n"


def step(statement: str) -> Step:
    (found,) = parse_story("a.txt", f"{HEAD}{statement}").steps
    return found


def test_a_story_has_a_title_with_rows_a_cluster_and_steps() -> None:
    story = parse_story(
        "a.txt", f"{HEAD}\n# Why.\nclient-1 starts\neventually client-1 has applied 0 to 3\n"
    )
    assert (story.name, story.title, story.cluster) == ("a.txt", "A title (ST-01)", (3, 1, 2))
    assert [each.line for each in story.steps] == [5, 6]
    assert [each.phrase.verb for each in story.steps] == ["start_client", "has_applied"]


def test_a_cluster_may_have_checkpoints() -> None:
    text = (
        "# A title (ST-01, SV-28)\n"
        "a cluster of 1 storage, 2 servers and 1 partition, with a checkpoint every 5 transactions"
    )
    assert parse_story("a.txt", text).cluster == (1, 2, 1, 5)


@pytest.mark.parametrize(
    ("statement", "manner", "seconds", "partition_id"),
    [
        ("the log is 0 to 3", Manner.AT_ONCE, 0, 0),
        ("the log is 0 to 3 in partition 1", Manner.AT_ONCE, 0, 1),
        ("eventually the log is 0 to 3 in partition 1", Manner.EVENTUALLY, 0, 1),
        ("for 20 seconds the log is 0 to 3", Manner.THROUGHOUT, 20, 0),
    ],
)
def test_a_state_is_looked_at_in_one_of_three_manners(
    statement: str, manner: Manner, seconds: int, partition_id: int
) -> None:
    found = step(statement)
    assert (found.manner, found.seconds, found.partition_id) == (manner, seconds, partition_id)
    assert found.arguments == (Range(0, 3),)


@pytest.mark.parametrize(
    ("statement", "arguments"),
    [
        ("client-1 writes 1 transaction", ("client-1", 1)),
        ("client-1 writes 12 transactions", ("client-1", 12)),
        ("client-1 has applied nothing", ("client-1", Range(0, -1))),
        ("client-1 has applied 7", ("client-1", Range(7, 7))),
        ("the replicas are storage-0", (("storage-0",),)),
        (
            "the replicas are storage-0, storage-1 and storage-2",
            (("storage-0", "storage-1", "storage-2"),),
        ),
        ("client-1 submits x", ("client-1", "x", Locks())),
        (
            "client-1 submits x with a read lock on a/1, an append lock on b/2 and c/3",
            ("client-1", "x", Locks(read=("a/1",), append=("b/2", "c/3"))),
        ),
        ('x of client-1 was told "no: never"', ("x", "client-1", "no: never")),
    ],
)
def test_places_in_a_phrase_have_values(statement: str, arguments: tuple[object, ...]) -> None:
    assert step(statement).arguments == arguments


@pytest.mark.parametrize(
    "statement",
    [
        "client-1 start",
        "storage-0 starts",
        "client-1 writes two transactions",
        "eventually client-1 starts",
        "for 20 seconds storage-0 is killed",
        "the log is 0 to 3 in partition one",
        "the log is from 0 to 3",
        "client-1 writes x with a write lock on account",
    ],
)
def test_an_unknown_line_is_an_error_that_names_file_and_line_and_what_is_known(
    statement: str,
) -> None:
    with pytest.raises(StoryError, match=r"^a\.txt:3: .* says nothing known") as error:
        step(statement)
    assert "the log is {range}" in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.txt:1: expected `# What the story tells"),
        ("# No rows\n", "a.txt:1: expected `# What the story tells"),
        ("# A title (ST-01)\n# Why.\n", "a.txt: tells nothing; expected first"),
        ("# A title (ST-01)\n\nclient-1 starts\n", "a.txt:3: 'client-1 starts'; expected first"),
    ],
)
def test_a_file_without_title_or_cluster_is_no_story(text: str, message: str) -> None:
    with pytest.raises(StoryError, match=f"^{message}"):
        parse_story("a.txt", text)


@pytest.mark.parametrize("phrase", [*EVENTS, *STATES], ids=lambda phrase: phrase.text)
def test_each_phrase_has_one_meaning(phrase: Phrase) -> None:
    """And a method for its verb."""
    assert callable(getattr(States if phrase.is_state else Stage, phrase.verb))
    examples = {
        "{storages}": "storage-1, storage-2 and storage-3",
        "{number}": "7",
        "{range}": "0 to 3",
        "{name}": "x",
        "{locks}": " with a write lock on account/7",
        "{quoted}": '"text"',
        "(s)": "s",
    }
    text = phrase.text
    for place, example in examples.items():
        text = text.replace(place, example)
    for kind in ("storage", "server", "client"):
        text = text.replace(f"{{{kind}}}", f"{kind}-1")
    text = text.replace("{machine}", "storage-1")
    matching = [each for each in (*CLUSTER, *EVENTS, *STATES) if each.match(text) is not None]
    assert matching == [phrase]
