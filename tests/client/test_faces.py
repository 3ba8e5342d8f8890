"""Whoever follows or writes a log finds the same verbs, whichever client or reader it has."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

import pytest

from tests.client.applications import Recorder
from waltz.client.blocking_client import WaltzClient
from waltz.client.client_shell import AsyncWaltzClient, ClientFacts
from waltz.reader.blocking_reader import LogReader
from waltz.reader.reader_shell import AsyncLogReader
from waltz.testing import InMemoryCluster
from waltz.testing.async_clients import AsyncTestClient, AsyncTestReader, FaceForLoops

OF_THE_INSIDE = {"engine"}
"""What the parts of a client use of each other."""

OF_TASKS = {"start"}
"""Which a blocking client has done once it is made."""

OF_THREADS = {"submit_many", "close_there"}
"""A task submits as many in a loop; and an in-memory cluster closes from its own loop."""

FACES = [
    (AsyncWaltzClient, WaltzClient),
    (AsyncWaltzClient, AsyncTestClient),
    (AsyncLogReader, LogReader),
    (AsyncLogReader, AsyncTestReader),
]


def verbs(face: type) -> dict[str, tuple[inspect.Signature, str | None]]:
    """The parameters, the result and the docstring of each verb."""
    return {
        name: (signature_of(value), inspect.getdoc(getattr(face, name)))
        for name, value in inspect.getmembers(face, inspect.isfunction)
        if not name.startswith("_") and name not in OF_THE_INSIDE | OF_TASKS | OF_THREADS
    }


def signature_of(verb: Callable[..., object]) -> inspect.Signature:
    """With what is yielded one by one to tasks and to threads under one name."""
    signature = inspect.signature(verb)
    returns = signature.return_annotation
    if returns.startswith("AsyncGenerator["):
        returns = returns.removeprefix("Async").replace(", None]", ", None, None]")
    return signature.replace(return_annotation=returns)


def attributes(face: type) -> dict[str, str | None]:
    found = inspect.getmembers(face, lambda each: isinstance(each, property))
    return {
        name: inspect.getdoc(each)
        for name, each in found
        if not name.startswith("_") and name not in OF_THE_INSIDE
    }


@pytest.mark.parametrize(("one", "other"), FACES)
def test_both_have_the_same_verbs_that_take_return_and_say_the_same(one: type, other: type) -> None:
    expected, found = verbs(one), verbs(other)
    # Closing says how it is for threads, or with a cluster in memory.
    assert found.pop("close")[0] == expected.pop("close")[0]
    assert found == expected
    assert attributes(other) == attributes(one)
    assert all(said for _, said in found.values())


@pytest.mark.parametrize(("one", "other"), FACES)
def test_what_waits_for_tasks_blocks_threads_and_waits_for_any_loop(one: type, other: type) -> None:
    for name in verbs(one):
        waits = inspect.iscoroutinefunction(getattr(one, name))
        expected = waits and other in (AsyncTestClient, AsyncTestReader)
        assert inspect.iscoroutinefunction(getattr(other, name)) == expected, name


@pytest.mark.parametrize("face", [WaltzClient, LogReader])
def test_verbs_for_threads_are_named_after_the_class_that_has_them(face: type) -> None:
    for name, verb in vars(face).items():
        if inspect.isfunction(verb):
            assert verb.__qualname__ == f"{face.__name__}.{name}"
            assert verb.__module__ == face.__module__


@pytest.mark.parametrize("face", [AsyncTestClient, AsyncTestReader])
def test_what_works_on_another_loop_leaves_nothing_to_what_was_never_made(face: type) -> None:
    """Its last base class was never initialized: what it inherits would miss its attributes, but
    for what goes by `engine` alone."""
    by_engine = {*verbs(ClientFacts), *attributes(ClientFacts)}
    owners = {name: each for each in reversed(face.__mro__) for name in vars(each)}
    mine = {face, FaceForLoops}
    inherited = {name for name in (*verbs(face), *attributes(face)) if owners[name] not in mine}
    assert inherited <= by_engine
    assert face is AsyncTestReader or owners["engine"] is face


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
