from __future__ import annotations

import pytest

from tests.server.builders import (
    PARTITION,
    append,
    data_request,
    feed_request,
    flush,
    mark_request,
    mount,
    peer,
    request_id,
    tid,
    together,
)
from waltz.errors import RemoteProtocolError
from waltz.server.appends.appends import of_batches
from waltz.server.clients.client_connection import (
    MessagesReceived,
    Mounts,
    Proof,
    Sorted,
    Sorter,
    answer_without_partition,
    may_overtake,
)
from waltz.server.feeding.backlog import request_bytes
from waltz.types import (
    SEQUENCE_NUMBER_MAX,
    CertificateNames,
    ClientId,
    Generation,
    PartitionId,
    RequestId,
)
from waltz.wire.before_batches import joined
from waltz.wire.client_protocol import (
    ClientMessage,
    FlushRequest,
    FlushResponse,
    MountResponse,
    MountState,
    ServerPartitionsAssignmentRequest,
    TransactionDataResponse,
)
from waltz.wire.columns import expanded_request_ids, request_id_runs
from waltz.wire.discovery_protocol import (
    ClientIdRequest,
    PartitionProblemsRequest,
    TopologyRequest,
)

FIRST = Generation(1)


def test_messages_are_sorted_by_partition_and_keep_their_order() -> None:
    other = FlushRequest(RequestId(ClientId(7), FIRST, PartitionId(0), 9))
    question = ServerPartitionsAssignmentRequest(RequestId(ClientId(7), FIRST, PartitionId(0), 0))
    first, second = together(append(1)), together(append(2))
    messages = [first, other, question, second]
    assert Sorter(1).sort(messages) == Sorted(
        (
            (
                PARTITION,
                MessagesReceived(peer(sequence=None, version=5), (first, second)),
                request_bytes(first) + request_bytes(second),
            ),
            (
                PartitionId(0),
                MessagesReceived(peer(sequence=None, version=5), (other,)),
                request_bytes(other),
            ),
        ),
        (question,),
    )


def test_connection_is_known_by_its_first_message_and_its_first_mount() -> None:
    """CS-24: neither changes later."""
    sorter = Sorter(1)
    assert sorter.sort([]) == Sorted((), ())
    sorter.sort([flush(client=7)])
    sorter.sort([mount(client=8, connection_sequence=5)])
    ((_, event, _),), _ = sorter.sort([mount(client=9, connection_sequence=6)])
    assert event.peer == peer(client=7, sequence=5, version=5)


def test_questions_without_a_client_id_are_for_the_server_and_name_nobody() -> None:
    """LC-60: whoever asks for its client ID has none yet."""
    sorter = Sorter(1)
    questions = [TopologyRequest(True), ClientIdRequest(5), PartitionProblemsRequest(6)]
    assert sorter.sort(questions) == Sorted((), tuple(questions))
    ((_, received, _),) = sorter.sort([flush()]).for_partitions
    assert received.peer == peer(sequence=None, version=5)


def test_an_append_in_the_name_of_another_client_is_refused() -> None:
    """That client would take the transaction for its own."""
    sorter = Sorter(1)
    sorter.sort([mount(client=7)])
    with pytest.raises(
        RemoteProtocolError, match="of client 8 arrived on a connection of client 7"
    ):
        sorter.sort([together(append(1, client=8))])


def test_sequence_numbers_of_a_batch_do_not_wrap() -> None:
    last = SEQUENCE_NUMBER_MAX
    sorter = Sorter(1)
    assert sorter.sort([together(append(last - 1), append(last))]).for_partitions
    with pytest.raises(RemoteProtocolError, match="2147483646 to 2147483648; expected at most 21"):
        sorter.sort([together(append(last - 1), append(last), append(1))])


def test_single_appends_go_on_with_the_least_number_as_the_originals_do() -> None:
    """Versions 0 to 4: no number comes again before 2^32 appends, and each is kept as it is."""
    numbers = [SEQUENCE_NUMBER_MAX, -SEQUENCE_NUMBER_MAX - 1, -SEQUENCE_NUMBER_MAX]
    appends = [append(number) for number in numbers]
    ((_, received, _),) = Sorter(1).sort(joined(appends)).for_partitions
    taken = of_batches([*received.messages], 1, 1)  # type: ignore[list-item]
    records = taken.records.request_ids.reshape(-1, 16)
    runs = request_id_runs(records)
    assert runs[:, 3:].tolist() == [[numbers[0], 1], [numbers[1], 2]], "no run passes the edge"
    assert expanded_request_ids(runs).tobytes() == records.tobytes()


def test_message_that_only_servers_send_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="FlushResponse"):
        Sorter(1).sort([FlushResponse(request_id(), tid(0))])


def test_partition_elsewhere_is_told_to_mounts_and_data_requests_only() -> None:
    """SV-04, H2."""
    assert answer_without_partition(mount()) == MountResponse(request_id(), MountState.NOT_READY)
    assert answer_without_partition(data_request(4)) == TransactionDataResponse(
        request_id(), tid(4), None, 0, "partition not ready"
    )
    for message in (append(1), feed_request(), flush(), mark_request()):
        assert answer_without_partition(message) is None


def test_a_few_questions_to_the_log_may_overtake_and_nothing_beside_them() -> None:
    def received(*messages: ClientMessage) -> MessagesReceived:
        return MessagesReceived(peer(), messages)

    assert may_overtake(received(data_request(1)))
    assert may_overtake(received(mark_request(), data_request(1)))
    assert not may_overtake(received(data_request(1), append(1)))
    assert not may_overtake(received(flush()))
    assert not may_overtake(received(*[data_request(1)] * 9)), "no call after the other"


def test_newer_connection_replaces_an_older_one() -> None:
    """CS-24, SV-18."""
    mounts = Mounts()
    old, new = peer(connection=1, sequence=0), peer(connection=2, sequence=1)
    assert not mounts.is_valid(old)
    assert mounts.mount(old, FIRST) is None
    assert mounts.is_valid(old)
    assert mounts.mount(new, FIRST) == 1
    assert mounts.is_valid(new)
    assert not mounts.is_valid(old)
    assert mounts.mount(old, FIRST) is None
    assert not mounts.is_valid(old), "an older sequence does not come back"


NAMES = CertificateNames((), ("shared.example",), ("one",), "CN=one")
OTHERS = CertificateNames((), ("shared.example",), ("other",), "CN=other")
ONE = Proof(b"one client's bytes", host="here")


@pytest.mark.parametrize(
    ("known", "other"),
    [
        (ONE, Proof(b"another's bytes..", host="here")),
        (ONE, Proof(host="here")),
        (Proof(host="here"), ONE),
        (Proof(host="here"), Proof(host="elsewhere")),
        (Proof(certificate=NAMES, host="here"), Proof(certificate=OTHERS, host="here")),
    ],
)
def test_nobody_takes_the_id_of_a_client_that_lives(known: Proof, other: Proof) -> None:
    """And what was refused, or has left, leaves nothing behind."""
    mounts = Mounts()
    mine = peer(connection=1, sequence=5, version=5)._replace(proof=known)
    forged = peer(connection=2, sequence=2**31 - 1, version=5)._replace(proof=other)
    mounts.mount(mine, FIRST)
    assert mounts.mount(forged, Generation(9)) is None
    assert mounts.is_valid(mine)
    assert not mounts.is_valid(forged)
    mounts.remove(2)
    assert mounts.is_valid(mine)
    mounts.remove(1)
    mounts.mount(forged, FIRST)
    assert mounts.is_valid(forged), "as long as it lives itself"
    mounts.remove(2)
    again = mine._replace(connection_id=3, sequence=6)
    assert not mounts.is_repeated(again)
    mounts.mount(again, FIRST)
    assert mounts.is_valid(again)


@pytest.mark.parametrize("proof", [ONE, Proof(host="here")])
def test_a_client_that_proves_to_be_the_same_replaces_its_connection(proof: Proof) -> None:
    mounts = Mounts()
    mounts.mount(peer(connection=1, sequence=5)._replace(proof=proof), FIRST)
    newer = peer(connection=2, sequence=6)._replace(proof=proof)
    assert mounts.mount(newer, FIRST) == 1
    assert mounts.is_valid(newer)


def test_a_token_counts_wherever_its_client_is() -> None:
    mounts = Mounts()
    mounts.mount(peer(connection=1)._replace(proof=ONE), FIRST)
    moved = peer(connection=2, sequence=1)._replace(proof=ONE._replace(host="elsewhere"))
    assert mounts.mount(moved, FIRST) == 1


def test_higher_generation_outranks_a_higher_sequence() -> None:
    mounts = Mounts()
    mounts.mount(peer(connection=1, sequence=5), FIRST)
    assert mounts.mount(peer(connection=2, sequence=0), Generation(2)) == 1
    assert mounts.is_valid(peer(connection=2, sequence=0))
    assert not mounts.is_valid(peer(connection=1, sequence=5))


def test_connection_of_the_same_rank_takes_over_so_that_losing_the_first_does_not_unmount() -> None:
    mounts = Mounts()
    mounts.mount(peer(connection=1), FIRST)
    assert mounts.mount(peer(connection=2), FIRST) == 1
    mounts.remove(1)
    assert mounts.is_valid(peer(connection=2))
    mounts.remove(2)
    assert len(mounts) == 0
    assert not mounts.is_valid(peer(connection=2))


def test_what_a_connection_has_sent_does_not_count_again_on_another() -> None:
    """CS-24, LC-54: from version 5 on a sequence number is that of one connection, for good."""
    mounts = Mounts(gone_max=1)
    mine, again = (peer(connection=each, sequence=3, version=5) for each in (1, 2))
    older, newer = (peer(connection=3, sequence=each, version=5) for each in (2, 4))
    assert not mounts.is_repeated(mine)
    mounts.mount(mine, FIRST)
    assert not mounts.is_repeated(mine), "it may mount again"
    assert not mounts.is_repeated(older), "it is outranked, and told so"
    for _ in range(2):
        assert mounts.is_repeated(again)
        assert not mounts.is_repeated(newer)
        mounts.remove(1)
    assert mounts.is_repeated(older)
    mounts.mount(newer, FIRST)
    assert not mounts.is_repeated(again), "it is outranked"
    mounts.remove(3)
    assert mounts.is_repeated(again)


@pytest.mark.parametrize("versions", [(4, 4), (4, 5), (5, 4)])
def test_before_version_5_a_sequence_number_may_come_again(versions: tuple[int, int]) -> None:
    """H5: the original counts anew for a server that has been away."""
    mounts = Mounts()
    one, other = (peer(connection=each, version=version) for each, version in enumerate(versions))
    mounts.mount(one, FIRST)
    assert not mounts.is_repeated(other)
    mounts.remove(0)
    assert not mounts.is_repeated(other)


def test_so_many_that_are_gone_are_remembered() -> None:
    mounts = Mounts(gone_max=2)
    for number in range(4):
        mounts.mount(peer(connection=number, client=number, version=5), FIRST)
        mounts.remove(number)
    for number in range(4):
        repeated = peer(connection=9, client=number, version=5)
        assert mounts.is_repeated(repeated) == (number >= 2)


def test_clients_do_not_disturb_each_other() -> None:
    mounts = Mounts()
    mounts.mount(peer(connection=1, client=7, sequence=3), FIRST)
    mounts.mount(peer(connection=2, client=8, sequence=0), FIRST)
    assert mounts.is_valid(peer(connection=1, client=7, sequence=3))
    assert mounts.connection_ids() == [1, 2]


def test_connection_that_never_mounted_is_not_valid() -> None:
    mounts = Mounts()
    mounts.mount(peer(connection=1), FIRST)
    assert not mounts.is_valid(peer(connection=2, sequence=None))
