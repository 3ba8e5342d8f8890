"""Servers and their partitions: the original's bytes, policy (CM-09, CM-11, CM-13), who decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.golden import TREES, VALUES, golden_tree
from waltz.cluster.server_assignment import (
    NO_ASSIGNMENT,
    MembershipRead,
    PartitionAssignment,
    ServerDescriptor,
    assign_partitions,
    proposed_assignment,
    routes,
)
from waltz.errors import ConfigurationError, RemoteProtocolError
from waltz.types import Address, Generation, PartitionId, ServerId


def descriptor(server_id: int, *preferred: int) -> ServerDescriptor:
    address = Address(f"host{server_id}", 7000)
    return ServerDescriptor(ServerId(server_id), address, tuple(map(PartitionId, preferred)))


def descriptors(*found: int | ServerDescriptor) -> dict[ServerId, ServerDescriptor]:
    made = [each if isinstance(each, ServerDescriptor) else descriptor(each) for each in found]
    return {each.server_id: each for each in made}


def assignment(
    membership_version: int, partition_count: int, servers: Mapping[int, Mapping[int, int]]
) -> PartitionAssignment:
    return PartitionAssignment(
        membership_version,
        partition_count,
        {
            ServerId(server_id): {PartitionId(p): Generation(g) for p, g in held.items()}
            for server_id, held in servers.items()
        },
    )


def owners(found: PartitionAssignment) -> dict[PartitionId, tuple[ServerId, Generation]]:
    return {
        partition_id: (server_id, generation)
        for server_id, held in found.servers.items()
        for partition_id, generation in held.items()
    }


def test_the_bytes_are_those_of_the_original() -> None:
    two = assignment(2, 4, {1: {0: 1, 2: 1}, 2: {1: 1, 3: 4}})
    assert two.encode() == VALUES["PA 2 servers"]
    assert PartitionAssignment.decode(VALUES["PA 2 servers"]) == two
    assert NO_ASSIGNMENT.encode() == VALUES["PA initial"]
    assert PartitionAssignment.decode(VALUES["PA initial"]) == NO_ASSIGNMENT


def test_descriptors_are_those_of_the_original() -> None:
    """CM-07"""
    plain = ServerDescriptor(ServerId(1), Address("host1.example.com", 55180))
    assert plain.encode() == VALUES["SD"]
    assert ServerDescriptor.decode(VALUES["SD"]) == plain
    choosy = ServerDescriptor(ServerId(1), Address("h", 55180), (PartitionId(0), PartitionId(3)))
    assert choosy.encode() == VALUES["SD pref"]
    assert ServerDescriptor.decode(VALUES["SD pref"]) == choosy


def test_every_cut_is_refused() -> None:
    for name in ("PA initial", "PA 2 servers"):
        for length in range(len(VALUES[name])):
            with pytest.raises(RemoteProtocolError):
                PartitionAssignment.decode(VALUES[name][:length])
    for length in range(len(VALUES["SD pref"])):
        with pytest.raises(RemoteProtocolError):
            ServerDescriptor.decode(VALUES["SD pref"][:length])


def test_a_partition_of_two_servers_is_refused() -> None:
    """CM-12"""
    with pytest.raises(RemoteProtocolError, match="twice"):
        PartitionAssignment.decode(assignment(1, 2, {1: {0: 1, 1: 1}, 2: {1: 2}}).encode())


def test_a_server_named_twice_is_refused() -> None:
    data = assignment(1, 2, {1: {0: 1}, 2: {1: 2}}).encode()
    server_2 = bytes.fromhex("00000002 00000001 00000001 00000002")
    assert data.endswith(server_2)
    with pytest.raises(RemoteProtocolError, match="twice"):
        PartitionAssignment.decode(data.removesuffix(server_2) + b"\0\0\0\1" + server_2[4:])


def membership_of(tree: str) -> MembershipRead:
    nodes = golden_tree(tree)
    parent = nodes["/waltz_cluster/serverDescriptors"]
    found = [
        ServerDescriptor.decode(node.data or b"")
        for path, node in sorted(nodes.items())
        if path.startswith("/waltz_cluster/serverDescriptors/")
    ]
    return MembershipRead(
        parent.version,
        parent.child_version,
        PartitionAssignment.decode(parent.data or b""),
        {each.server_id: each for each in found},
    )


@pytest.mark.parametrize("tree", TREES[3:])
def test_the_original_assignments_are_consistent_and_written_back(tree: str) -> None:
    membership = membership_of(tree)
    data = golden_tree(tree)["/waltz_cluster/serverDescriptors"].data
    assert membership.is_consistent
    assert membership.assignment.encode() == data
    assert len(routes(membership) or {}) == 2


def test_our_coordinator_would_have_written_what_the_original_wrote() -> None:
    """Where one server holds everything there is only one answer."""
    before, up = membership_of("2-storages-assigned"), membership_of("3-server-up")
    seen = replace(up, version=before.version, assignment=before.assignment)
    assert proposed_assignment(seen, ServerId(1), 2) == up.assignment
    two, dead = membership_of("7-two-servers"), membership_of("8-server1-dead")
    seen = replace(dead, version=two.version, assignment=two.assignment)
    (survivor,) = dead.descriptors
    proposed = proposed_assignment(seen, survivor, 2)
    assert proposed is not None
    assert owners(proposed) == owners(dead.assignment)


def counts(found: PartitionAssignment) -> list[int]:
    return sorted((len(held) for held in found.servers.values()), reverse=True)


def test_partitions_are_spread_evenly_and_only_needed_ones_move() -> None:
    """CM-09, CM-11, CM-30"""
    three = assign_partitions(
        NO_ASSIGNMENT, descriptors(1, 2, 3), partition_count=10, membership_version=3
    )
    assert counts(three) == [4, 3, 3]
    assert {generation for _, generation in owners(three).values()} == {1}
    four = assign_partitions(
        three, descriptors(1, 2, 3, 4), partition_count=10, membership_version=4
    )
    assert counts(four) == [3, 3, 2, 2]
    moved = {p for p in owners(three) if owners(three)[p] != owners(four)[p]}
    assert len(moved) == 2
    assert {owners(four)[p] for p in moved} == {(4, 2)}


def test_a_bounced_server_gets_its_partitions_back_two_generations_later() -> None:
    """CM-11, as seen in the original: 4 partitions on 2 servers, a third comes and goes."""
    two = assign_partitions(
        NO_ASSIGNMENT, descriptors(1, 2), partition_count=4, membership_version=2
    )
    three = assign_partitions(two, descriptors(1, 2, 3), partition_count=4, membership_version=3)
    again = assign_partitions(three, descriptors(1, 2), partition_count=4, membership_version=4)
    moved = [p for p in owners(two) if owners(two)[p] != owners(three)[p]]
    assert len(moved) == 1
    assert owners(three)[moved[0]] == (3, 2)
    assert owners(again)[moved[0]] == (owners(two)[moved[0]][0], 3)
    assert [p for p in owners(two) if owners(two)[p] != owners(again)[p]] == moved


def test_preferred_partitions_go_to_the_first_server_that_wants_them() -> None:
    """CM-09"""
    found = assign_partitions(
        NO_ASSIGNMENT,
        descriptors(descriptor(1, 3), descriptor(2, 3, 0), descriptor(3, 99)),
        partition_count=6,
        membership_version=3,
    )
    assert owners(found)[PartitionId(3)] == (1, 1)
    assert owners(found)[PartitionId(0)] == (2, 1)
    assert counts(found) == [2, 2, 2]


def test_preferring_what_is_held_does_not_raise_its_generation() -> None:
    before = assign_partitions(
        NO_ASSIGNMENT, descriptors(1, 2), partition_count=4, membership_version=2
    )
    held = next(iter(before.servers[ServerId(2)]))
    after = assign_partitions(
        before, descriptors(1, descriptor(2, held)), partition_count=4, membership_version=2
    )
    assert owners(after) == owners(before)


@pytest.mark.parametrize(
    ("partition_count", "found"),
    [(4, (descriptor(1, 0), 2, 3)), (5, (descriptor(1, 0, 1), 2)), (5, (1, descriptor(2, 3, 4)))],
)
def test_a_server_that_just_reaches_its_share_leaves_room_for_the_rest(
    partition_count: int, found: tuple[int | ServerDescriptor, ...]
) -> None:
    """Where the original ends with an incomplete assignment."""
    complete = assign_partitions(
        NO_ASSIGNMENT, descriptors(*found), partition_count=partition_count, membership_version=1
    )
    assert len(owners(complete)) == partition_count
    assert max(counts(complete)) - min(counts(complete)) <= 1


def test_partitions_may_grow_and_not_shrink() -> None:
    """CM-13"""
    before = assign_partitions(
        NO_ASSIGNMENT, descriptors(1), partition_count=2, membership_version=1
    )
    grown = assign_partitions(before, descriptors(1), partition_count=3, membership_version=1)
    assert owners(grown) == {0: (1, 1), 1: (1, 1), 2: (1, 1)}
    with pytest.raises(ConfigurationError, match="shrink"):
        assign_partitions(before, descriptors(1), partition_count=1, membership_version=1)


def test_a_lost_generation_is_not_invented() -> None:
    incomplete = assignment(1, 3, {1: {0: 4, 2: 1, 7: 9}})
    with pytest.raises(RemoteProtocolError, match="lacks partition 1"):
        assign_partitions(incomplete, descriptors(1), partition_count=3, membership_version=2)


def test_every_small_case_is_complete_balanced_and_steady() -> None:
    """All subsets of three servers after one another, up to seven partitions."""
    subsets = [[s for s in (1, 2, 3) if mask >> s & 1] for mask in (2, 4, 8, 6, 10, 12, 14)]
    for partition_count, first, second in product(range(1, 8), subsets, subsets):
        before = assign_partitions(
            NO_ASSIGNMENT,
            descriptors(*first),
            partition_count=partition_count,
            membership_version=1,
        )
        after = assign_partitions(
            before, descriptors(*second), partition_count=partition_count, membership_version=2
        )
        assert set(owners(after)) == set(range(partition_count))
        assert set(after.servers) == set(second)
        assert max(counts(after)) - min(counts(after)) <= 1
        for partition_id, (server_id, generation) in owners(after).items():
            old_server, old_generation = owners(before)[partition_id]
            assert generation == old_generation + (server_id != old_server)
        again = assign_partitions(
            after, descriptors(*second), partition_count=partition_count, membership_version=2
        )
        assert again == after


@given(
    st.integers(1, 12),
    st.lists(
        st.dictionaries(
            st.integers(1, 5), st.lists(st.integers(0, 14), max_size=6), min_size=1, max_size=5
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_any_preferences_give_a_complete_assignment(
    partition_count: int, memberships: list[dict[int, list[int]]]
) -> None:
    current = NO_ASSIGNMENT
    for version, found in enumerate(memberships):
        previous = owners(current)
        current = assign_partitions(
            current,
            descriptors(*(descriptor(server_id, *wanted) for server_id, wanted in found.items())),
            partition_count=partition_count,
            membership_version=version,
        )
        assert set(owners(current)) == set(range(partition_count))
        for partition_id, (server_id, generation) in owners(current).items():
            if partition_id in previous:
                old_server, old_generation = previous[partition_id]
                assert generation == old_generation + (server_id != old_server)
        assert PartitionAssignment.decode(current.encode()) == current


def test_only_the_smallest_server_decides_and_only_when_needed() -> None:
    """CM-08"""
    stale = MembershipRead(5, 3, NO_ASSIGNMENT, descriptors(2, 7))
    proposed = proposed_assignment(stale, ServerId(2), 4)
    assert proposed is not None
    assert proposed.membership_version == 3
    assert proposed_assignment(stale, ServerId(7), 4) is None
    assert proposed_assignment(replace(stale, assignment=proposed), ServerId(2), 4) is None
    assert proposed_assignment(replace(stale, descriptors={}), ServerId(2), 4) is None
    assert proposed_assignment(replace(stale, descriptors=descriptors(7)), ServerId(7), 4)


def test_partitions_of_a_server_that_is_not_there_are_given_away_whatever_the_tag_says() -> None:
    """CM-08: in a copied tree child versions begin anew, and one of them is that of the tag."""
    copied = MembershipRead(5, 1, assignment(1, 2, {1: {0: 5, 1: 5}}), descriptors(2, 3))
    assert copied.is_consistent
    proposed = proposed_assignment(copied, ServerId(2), 2)
    assert proposed == assignment(1, 2, {2: {0: 6}, 3: {1: 6}})
    assert proposed_assignment(copied, ServerId(3), 2) is None
    assert proposed_assignment(replace(copied, assignment=proposed), ServerId(2), 2) is None
    idle = replace(copied, assignment=assignment(1, 2, {2: {0: 5, 1: 5}, 9: {}}))
    assert proposed_assignment(idle, ServerId(2), 2) is None, "nothing waits for that one"


def test_routes_are_kept_until_an_assignment_fits_the_membership() -> None:
    """CM-14: without servers there are no routes; with an old assignment there is no news."""
    made = assignment(3, 2, {1: {0: 5}, 2: {1: 6}})
    fitting = MembershipRead(4, 3, made, descriptors(1, 2))
    assert routes(fitting) == {0: (Address("host1", 7000), 5), 1: (Address("host2", 7000), 6)}
    assert routes(replace(fitting, child_version=4)) is None
    assert routes(replace(fitting, descriptors=descriptors(2))) is None
    assert routes(replace(fitting, descriptors={})) == {}


@given(st.data())
def test_the_same_servers_always_get_the_same_and_nothing_moves_without_need(
    data: st.DataObject,
) -> None:
    """CM-10: dealing out is a function of what stands in the coordinator: whoever does it, in
    whatever order the servers are read, comes to the same, and doing it again changes nothing."""
    count = data.draw(st.integers(1, 12))
    wishes = st.lists(st.integers(0, count - 1), max_size=3, unique=True)
    found = descriptors(
        *[
            descriptor(server_id, *data.draw(wishes))
            for server_id in data.draw(st.lists(st.integers(1, 20), min_size=1, unique=True))
        ]
    )

    def dealt_out(previous: PartitionAssignment, version: int) -> PartitionAssignment:
        order = data.draw(st.permutations(sorted(found)))
        shuffled = {server_id: found[server_id] for server_id in order}
        return assign_partitions(
            previous, shuffled, partition_count=count, membership_version=version
        )

    first, other = dealt_out(NO_ASSIGNMENT, 1), dealt_out(NO_ASSIGNMENT, 1)
    assert owners(first) == owners(other)
    again = dealt_out(first, 2)
    assert owners(again) == owners(first), "nobody has come or gone"
    membership = MembershipRead(1, 2, again, found)
    for server_id in found:
        assert proposed_assignment(membership, server_id, count) is None
