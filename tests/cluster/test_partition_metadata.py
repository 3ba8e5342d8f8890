"""Partition metadata: bytes of the original, and how a session begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.golden import VALUES, golden_tree
from waltz.cluster.partition_metadata import (
    NEW_PARTITION,
    SESSION_CLIMB,
    SESSION_CLIMB_MAX,
    PartitionMetadata,
    ReplicaState,
    is_set_back,
    next_session,
)
from waltz.errors import FencedError, RemoteProtocolError
from waltz.types import Generation, PartitionId, ReplicaId, SessionId, TransactionId

PARTITION_2 = PartitionId(2)
UNRESOLVED = PartitionMetadata(
    Generation(3), SessionId(9), {ReplicaId("h1:6000"): ReplicaState(SessionId(9), None)}
)
CLOSED = PartitionMetadata(
    Generation(3),
    SessionId(9),
    {ReplicaId("h2:6000"): ReplicaState(SessionId(8), TransactionId(99))},
)


@pytest.mark.parametrize(
    ("name", "metadata"), [("PM EMPTY", NEW_PARTITION), ("PM", UNRESOLVED), ("PM closed", CLOSED)]
)
def test_the_bytes_are_those_of_the_original(name: str, metadata: PartitionMetadata) -> None:
    assert metadata.encode(PARTITION_2) == VALUES[name]
    assert PartitionMetadata.decode(VALUES[name], PARTITION_2) == metadata


@pytest.mark.parametrize("number", [0, 1])
def test_the_original_trees_are_read_and_written_back(number: int) -> None:
    data = golden_tree("3-server-up")[f"/waltz_cluster/store/partition/{number}"].data or b""
    metadata = PartitionMetadata.decode(data, PartitionId(number))
    assert (metadata.generation, metadata.session_id) == (1, 0)
    assert metadata.replica_states == dict.fromkeys(
        ["vm:47320", "vm:47330", "vm:47310"], ReplicaState(SessionId(0), None)
    )
    assert metadata.encode(PartitionId(number)) == data


def test_every_cut_is_refused() -> None:
    for length in range(len(VALUES["PM"])):
        with pytest.raises(RemoteProtocolError):
            PartitionMetadata.decode(VALUES["PM"][:length], PARTITION_2)


def test_replicas_of_another_partition_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match=r"2@h1:6000 in the metadata of partition 1"):
        PartitionMetadata.decode(VALUES["PM"], PartitionId(1))


def test_a_replica_named_twice_is_refused() -> None:
    data = VALUES["PM"]
    twice = data[:13] + b"\0\0\0\2" + data[17:] * 2
    with pytest.raises(RemoteProtocolError, match="once"):
        PartitionMetadata.decode(twice, PARTITION_2)


def test_the_first_session_is_0() -> None:
    first = next_session(NEW_PARTITION, Generation(1))
    assert first == PartitionMetadata(Generation(1), SessionId(0), {})


def test_a_session_keeps_the_replica_states() -> None:
    following = next_session(CLOSED, Generation(3))
    assert following == PartitionMetadata(Generation(3), SessionId(10), CLOSED.replica_states)


def test_an_older_generation_opens_no_session() -> None:
    """CM-12: the server that lost a partition must not take it back."""
    with pytest.raises(FencedError, match="generation 2"):
        next_session(CLOSED, Generation(2))


STATES = st.builds(
    ReplicaState,
    st.integers(-1, 2**62).map(SessionId),
    st.none() | st.integers(-1, 2**62).map(TransactionId),
)


@given(
    st.builds(
        PartitionMetadata,
        st.integers(-1, 2**31 - 1).map(Generation),
        st.integers(-1, 2**62).map(SessionId),
        st.dictionaries(st.text("abc.:0123456789").map(ReplicaId), STATES, max_size=5),
    ),
    st.integers(0, 2**31 - 1).map(PartitionId),
)
def test_every_value_survives(metadata: PartitionMetadata, partition_id: PartitionId) -> None:
    assert PartitionMetadata.decode(metadata.encode(partition_id), partition_id) == metadata


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        PartitionMetadata.decode(b"\1" + data, PARTITION_2)
    except RemoteProtocolError:
        pass


def test_what_replicas_have_promised_is_passed_by_so_much_that_everybody_can_tell() -> None:
    bumped = next_session(UNRESOLVED, Generation(3), SessionId(40))
    assert bumped.session_id == 40 + SESSION_CLIMB
    assert is_set_back(bumped)
    assert is_set_back(next_session(bumped, Generation(3)))
    assert not is_set_back(UNRESOLVED)
    assert not is_set_back(NEW_PARTITION)


def test_a_promise_that_the_metadata_know_of_changes_nothing() -> None:
    assert next_session(UNRESOLVED, Generation(3), SessionId(9)).session_id == 10


@pytest.mark.parametrize("forged", [SESSION_CLIMB_MAX, 2**63 - 1])
def test_no_climb_takes_the_numbers_that_are_left(forged: int) -> None:
    assert next_session(UNRESOLVED, Generation(3), SessionId(forged)).session_id == 10


def test_a_session_that_opens_has_no_replicas_and_counts_on_those_of_the_last_one() -> None:
    assert UNRESOLVED.current_replicas == UNRESOLVED.counted_replicas == ("h1:6000",)
    begun = next_session(UNRESOLVED, Generation(4))
    assert begun.current_replicas == ()
    assert begun.counted_replicas == ("h1:6000",)
    assert next_session(CLOSED, Generation(4)).counted_replicas == ()
