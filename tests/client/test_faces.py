"""Whoever follows or writes a log finds the same verbs, whichever client or reader it has."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from tests.client.applications import Recorder
from waltz.client.blocking_client import WaltzClient
from waltz.client.client_shell import AsyncWaltzClient
from waltz.reader.blocking_reader import LogReader
from waltz.reader.reader_shell import AsyncLogReader
from waltz.testing import InMemoryCluster
from waltz.testing.async_clients import AsyncTestClient, AsyncTestReader
from waltz.testing.cluster_faults import FaultyClient

OF_THE_INSIDE = {
    "nudge", "new_stream_side", "runner", "runner_of", "runners", "send", "stamp", "submissions",
}  # fmt: skip
"""What the parts of a client use of each other."""

OF_TASKS = {"start"}
"""Which a blocking client has done once it is made."""

FACES = [
    (AsyncWaltzClient, WaltzClient),
    (AsyncWaltzClient, AsyncTestClient),
    (AsyncWaltzClient, FaultyClient),
    (AsyncLogReader, LogReader),
    (AsyncLogReader, AsyncTestReader),
]


def verbs(face: type) -> dict[str, list[tuple[str, Any, Any]]]:
    """Parameters of each verb: name, kind and default."""
    found = {}
    for name, value in inspect.getmembers(face, inspect.isfunction):
        if name.startswith("_") or name in OF_THE_INSIDE | OF_TASKS:
            continue
        parameters = list(inspect.signature(value).parameters.values())[1:]
        found[name] = [
            (each.name, each.kind, each.default)
            for each in parameters
            if each.name != "on_finished"  # for the verbs above `submit`
        ]
    return found


def attributes(face: type) -> set[str]:
    found = {name for name, _ in inspect.getmembers(face, lambda each: isinstance(each, property))}
    return {name for name in found if not name.startswith("_")} - OF_THE_INSIDE


@pytest.mark.parametrize(("one", "other"), FACES)
def test_both_have_the_same_verbs_with_the_same_parameters(one: type, other: type) -> None:
    expected, found = verbs(one), verbs(other)
    found.pop("submit_many", None)  # a task submits as many in a loop
    found.pop("close_there", None)
    assert found == expected
    assert attributes(other) == attributes(one)


@pytest.mark.parametrize("face", [AsyncTestClient, AsyncTestReader])
def test_what_works_on_another_loop_leaves_no_verb_to_what_was_never_made(face: type) -> None:
    """Its base class was never initialized: each inherited verb would miss its attributes."""
    (base,) = face.__bases__
    inherited = {*verbs(base), *attributes(base)} - set(vars(face))
    assert not inherited


def test_every_attribute_of_every_face_can_be_read() -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        blocking = cluster.open_client(Recorder(), close_seconds_max=7.0)
        with cluster.open_reader() as reader:
            assert {name: getattr(reader, name) for name in attributes(AsyncLogReader)}

        async def read_all() -> None:
            made = cluster.open_async_client(Recorder(), close_seconds_max=7.0)
            assert made.options.close_seconds_max == 7.0, "before it is started, too"
            async with made as client, cluster.open_async_reader() as following:
                for face in (client, blocking):
                    values = {name: getattr(face, name) for name in attributes(AsyncWaltzClient)}
                    assert values["snapshot"].partition_count == 1
                    assert face.options.close_seconds_max == 7.0
                assert {name: getattr(following, name) for name in attributes(AsyncLogReader)}

        asyncio.run(read_all())
