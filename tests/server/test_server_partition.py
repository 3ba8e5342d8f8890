"""The machine of one partition, by value: what the original was seen to do, and where it hung."""

from __future__ import annotations

import pytest

from tests.server.builders import (
    PARTITION,
    append,
    batch,
    data_request,
    fed,
    feed_request,
    flush,
    mount,
    request_id,
    tid,
)
from tests.server.partition_bench import (
    CLIENT_AHEAD,
    NOT_READY,
    READY,
    Bench,
    feed_of,
    mount_ready,
    mounted,
    opened,
)
from waltz.limits import REQUEST_BYTES
from waltz.server.clients.early_requests import EARLY_MOUNT_SECONDS_MAX
from waltz.server.server_partition import RELEASE_SECONDS_MAX
from waltz.server.server_partition_events import (
    CloseClientConnection,
    ConnectionLost,
    PartitionRevoked,
    ReleaseRequested,
    RequestsDropped,
)
from waltz.store.events import StoreClosed
from waltz.wire.client_protocol import FlushResponse, MountRequest, MountResponse, MountState

# Mounting


def wait_in_vain(bench: Bench) -> dict[int, list[object]]:
    """What is heard when the time is up for which a mount waits for the store."""
    assert bench.machine.deadline == bench.now + EARLY_MOUNT_SECONDS_MAX
    bench.now = bench.machine.deadline
    return bench.step()


def test_mount_before_the_store_is_open_is_answered_when_it_is() -> None:
    """SV-30, SV-31: nobody asks again while a partition that has moved is ready."""
    bench = Bench(None)
    assert bench.say(mount()) == []
    assert bench.say(mount(client=8), connection=2, client=8) == []
    assert bench.step(opened(-1)) == {1: [READY], 2: [mount_ready(8)]}
    assert bench.machine.deadline is None
    assert bench.worked_off == {1: REQUEST_BYTES, 2: REQUEST_BYTES}


def test_mount_of_a_store_that_does_not_open_is_not_ready() -> None:
    """CI-25, SV-30: in bounded time, also after a session that has ended."""
    bench = Bench(None)
    assert bench.say(mount()) == []
    assert wait_in_vain(bench) == {1: [NOT_READY]}
    bench.step(opened(-1))
    assert bench.say(mount()) == [READY]
    bench.step(StoreClosed("a replica was lost"))
    assert bench.say(mount(sequence=2)) == []
    assert wait_in_vain(bench) == {
        1: [MountResponse(request_id(7, 2), MountState.NOT_READY)],
    }
    assert bench.worked_off == {1: 3 * REQUEST_BYTES}


def test_of_the_mounts_that_wait_the_last_of_a_connection_counts() -> None:
    bench = Bench(None)
    bench.say(mount())
    bench.say(mount(sequence=2))
    bench.say(mount(client=8), connection=2, client=8)
    bench.step(ConnectionLost(2))
    assert bench.step(opened(-1)) == {1: [MountResponse(request_id(7, 2), MountState.READY)]}
    assert bench.worked_off == {1: 2 * REQUEST_BYTES, 2: REQUEST_BYTES}


def test_mounts_that_wait_when_the_partition_goes_are_answered() -> None:
    """SV-03, H3."""
    bench = Bench(None)
    bench.say(mount())
    assert bench.step(PartitionRevoked(comes_back=False)) == {1: [NOT_READY]}
    assert bench.machine.closed


def test_feed_comes_before_the_mount_response() -> None:
    """CS-08, CS-11: client at -1, log of 3."""
    bench = Bench(2)
    bench.cache.add(PARTITION, batch(0, 3))
    assert bench.say(mount(-1)) == [*fed(0, 3), READY]


def test_client_ahead_of_the_log_is_told_and_not_fed() -> None:
    """CS-12."""
    bench = Bench(9)
    assert bench.say(mount(1000)) == [CLIENT_AHEAD]


@pytest.mark.parametrize("mark", [-1, 9, 1000])
def test_client_of_a_later_owner_is_not_mounted(mark: int) -> None:
    """It is this server that is out of date. Called ahead, the client would give the partition up
    for good; mounted, it would take what the later owner has committed for not written."""
    bench = Bench(9)
    late = request_id(generation=2)
    answer = bench.say(MountRequest(late, tid(mark), 0))
    assert answer == [MountResponse(late, MountState.NOT_READY)]


def test_client_of_an_earlier_owner_is_mounted() -> None:
    bench = Bench(generation=3)
    assert bench.say(mount()) == [READY]


def test_mount_waits_for_all_earlier_appends() -> None:
    """SV-13: after the answer no earlier append of any client is undecided."""
    bench = mounted()
    bench.say(append(2), append(3))
    assert bench.say(mount(client=8), connection=2, client=8) == []
    assert 2 not in bench.commit(1)
    assert bench.commit(1)[2] == [*fed(2, 0), *feed_of([2, 3], 0), mount_ready(8)]


def test_mount_of_an_outranked_connection_is_not_ready() -> None:
    """CS-24, H2, H5: the original says nothing, and its client never learns."""
    bench = Bench()
    assert bench.say(mount(connection_sequence=1), sequence=1) == [READY]
    assert bench.say(mount(), connection=2, sequence=0) == [NOT_READY]
    bench.step(ConnectionLost(1))
    assert bench.say(mount(), connection=2, sequence=0) == [READY]


def test_messages_of_a_replaced_connection_do_not_count() -> None:
    """CS-24, SV-18."""
    bench = mounted()
    assert bench.say(mount(connection_sequence=1), connection=2, sequence=1) == [READY]
    assert bench.say(append(2), feed_request()) == []
    assert bench.store == []
    assert [each.connection_id for each in bench.mounted] == [1, 2]
    assert bench.others == [
        CloseClientConnection(1, "a newer connection of its client has taken its place"),
        RequestsDropped(1, "stale connection", 2),
    ]
    bench.say(append(3), connection=2, sequence=1)
    assert bench.commit() == {}, "the old connection's feed has ended, the new one has not asked"


def test_append_without_a_mount_is_ignored() -> None:
    bench = Bench()
    assert bench.say(append(1)) == []
    assert bench.mounted == []
    assert bench.store == []


def test_mount_below_nothing_ends_the_connection() -> None:
    bench = Bench()
    assert bench.say(mount(-2)) == []
    assert isinstance(bench.others[0], CloseClientConnection)


# Ending


def test_revoked_partition_answers_what_waits_and_closes() -> None:
    """SV-03, H3."""
    bench = mounted()
    bench.say(append(2))
    bench.say(mount(client=8), data_request(0, client=8), flush(3, 8), connection=2, client=8)
    heard = bench.step(PartitionRevoked(comes_back=False))
    assert heard == {2: [MountResponse(request_id(8), MountState.NOT_READY)]}
    assert bench.machine.closed
    assert bench.others == []


def test_partition_that_comes_back_cuts_off_its_clients() -> None:
    """Clients do not mount again for a higher generation alone."""
    bench = mounted()
    bench.step(PartitionRevoked(comes_back=True))
    (closing,) = bench.others
    assert isinstance(closing, CloseClientConnection)
    assert closing.connection_id == 1


def test_released_partition_closes_when_all_is_decided() -> None:
    """SV-31."""
    bench = mounted()
    bench.say(append(2), flush(2))
    bench.step(ReleaseRequested())
    assert not bench.machine.closed
    bench.say(append(3))
    assert bench.stored() == [2]
    heard = bench.commit()
    assert heard == {1: [FlushResponse(request_id(7, 2), tid(0)), *feed_of([2], 0)]}
    assert bench.machine.closed


def test_released_partition_does_not_wait_for_ever() -> None:
    bench = mounted()
    bench.say(append(2))
    bench.step(ReleaseRequested())
    assert bench.machine.deadline == RELEASE_SECONDS_MAX
    bench.now = RELEASE_SECONDS_MAX
    bench.step()
    assert bench.machine.closed
