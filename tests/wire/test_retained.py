"""Streams that outlive what carries them: nothing lost, nothing twice, whatever breaks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import RemoteProtocolError
from waltz.wire.retained import RETAINED_BYTES_MAX, RETAINED_WRITES_MAX, Retained


def test_what_was_not_acknowledged_is_sent_again() -> None:
    """LC-48."""
    one = Retained()
    one.send(b"abc")
    one.send(b"defg")
    one.break_off()
    one.send(b"hi")
    assert one.resume(4) == b"efghi"
    assert not one.is_broken


def test_what_was_acknowledged_is_forgotten() -> None:
    one = Retained()
    one.send(b"abc")
    one.send(b"defg")
    one.acknowledge(5)
    assert one.byte_count == 4
    one.acknowledge(3)
    assert one.byte_count == 4
    one.acknowledge(7)
    assert one.byte_count == 0
    assert one.resume(7) == b""


def test_a_peer_cannot_have_got_more_than_was_sent() -> None:
    one = Retained()
    one.send(b"abc")
    for call in (one.acknowledge, one.resume):
        with pytest.raises(RemoteProtocolError, match="4 bytes acknowledged; 3 were sent"):
            call(4)


def test_a_busy_stream_forgets_the_oldest_and_recovers_when_acknowledged() -> None:
    """LC-52: nobody is cut off for being slow to acknowledge."""
    one = Retained(bytes_max=10)
    for _ in range(5):
        one.send(b"abcd")
    one.check_invariants()
    assert one.byte_count == 8
    assert not one.has_overflowed
    one.acknowledge(12)
    one.break_off()
    assert one.resume(14) == b"cdabcd"


def test_what_was_forgotten_cannot_be_resumed() -> None:
    one = Retained(bytes_max=10)
    for _ in range(5):
        one.send(b"abcd")
    one.break_off()
    assert one.resume(11) is None
    assert one.has_overflowed
    assert one.byte_count == 0


@pytest.mark.parametrize(
    ("bounds", "write"), [({"bytes_max": 10}, b"abcd"), ({"writes_max": 2}, b"a")]
)
def test_too_much_while_broken_ends_it(bounds: dict[str, int], write: bytes) -> None:
    """LC-52."""
    one = Retained(**bounds)
    one.break_off()
    one.send(write)
    one.send(write)
    overflowed = [one.has_overflowed]
    one.send(write)
    overflowed.append(one.has_overflowed)
    assert overflowed == [False, True]
    assert one.byte_count == 0
    assert one.resume(0) is None


def test_the_bounds_are_those_of_the_limits() -> None:
    one = Retained()
    for _ in range(RETAINED_WRITES_MAX + 5):
        one.send(b"a")
    assert one.byte_count == RETAINED_WRITES_MAX
    one.send(bytes(RETAINED_BYTES_MAX))
    assert one.byte_count == RETAINED_BYTES_MAX
    one.send(bytes(RETAINED_BYTES_MAX + 1))
    assert one.byte_count == 0
    one.check_invariants()


def test_an_acknowledgement_is_owed_after_so_many_bytes() -> None:
    one = Retained(acknowledge_bytes=10)
    one.receive(9)
    owed = [one.owes_acknowledgement]
    one.receive(1)
    owed.append(one.owes_acknowledgement)
    assert one.tell_received() == 10
    assert [*owed, one.owes_acknowledgement] == [False, True, False]


class Pair:
    """Two ends and what is on its way between them."""

    def __init__(self, bytes_max: int) -> None:
        self.ends = (Retained(bytes_max=bytes_max), Retained(bytes_max=bytes_max))
        self.way = [b"", b""]
        self.sent = [b"", b""]
        self.got = [b"", b""]
        self.is_whole = True

    def send(self, end: int, data: bytes) -> None:
        self.ends[end].send(data)
        self.sent[end] += data
        if self.is_whole:
            self.way[end] += data

    def arrive(self, end: int, count: int) -> None:
        """So much of what `end` has sent reaches the other."""
        data, self.way[end] = self.way[end][:count], self.way[end][count:]
        self.ends[1 - end].receive(len(data))
        self.got[1 - end] += data

    def restore(self) -> bool:
        """Both tell what they have, as one restore does; False: it cannot be."""
        counts = [end.received for end in self.ends]
        again = [self.ends[0].resume(counts[1]), self.ends[1].resume(counts[0])]
        if again[0] is None or again[1] is None:
            return False
        self.way = [again[0], again[1]]
        self.is_whole = True
        return True


END = st.integers(0, 1)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), END, st.binary(min_size=1, max_size=9)),
        st.tuples(st.just("arrive"), END, st.integers(0, 30)),
        st.tuples(st.just("acknowledge"), END, st.none()),
        st.tuples(st.just("break"), END, st.none()),
        st.tuples(st.just("restore"), END, st.none()),
    ),
    max_size=60,
)


@given(ACTIONS, st.sampled_from([20, 1000]))
def test_after_any_breaks_both_ends_have_got_what_was_sent(
    actions: list[tuple[str, int, object]], bytes_max: int
) -> None:
    """LC-48, LC-54: a prefix of it at every moment, and all of it in the end, or it has ended."""
    pair = Pair(bytes_max)
    for action, end, value in actions:
        match action, value:
            case "send", bytes():
                pair.send(end, value)
            case "arrive", int():
                pair.arrive(end, value)
            case "acknowledge", _:
                pair.ends[1 - end].acknowledge(pair.ends[end].tell_received())
            case "break", _:
                pair.is_whole = False
                pair.way = [b"", b""]
                for each in pair.ends:
                    each.break_off()
            case "restore", _ if not pair.is_whole and not pair.restore():
                return
        for side in (0, 1):
            pair.ends[side].check_invariants()
            assert pair.sent[1 - side].startswith(pair.got[side])
    if not pair.is_whole and not pair.restore():
        assert bytes_max == 20
        return
    for side in (0, 1):
        pair.arrive(side, len(pair.way[side]))
        assert pair.got[1 - side] == pair.sent[side]
