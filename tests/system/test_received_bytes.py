"""What has arrived is read in order, in pieces of bounded size and number."""

from __future__ import annotations

import asyncio

import pytest

from waltz.limits import READ_BYTES_MAX
from waltz.system.received_bytes import RECEIVED_PIECES_MAX, ReceivedBytes


def test_a_piece_that_fits_is_not_copied_and_a_larger_one_is_cut() -> None:
    received, piece, large = ReceivedBytes(), b"x" * 10, bytes(READ_BYTES_MAX + 1)
    received.keep(piece)
    assert received.take() is piece
    for each in (piece, large):
        received.keep(each)
    assert [len(received.take()) for _ in range(3)] == [10, READ_BYTES_MAX, 1]
    assert (received.byte_count, received.take()) == (0, b"")


def test_many_small_pieces_are_joined() -> None:
    received = ReceivedBytes()
    data = bytes(range(200))
    for number in data:
        received.keep(bytes([number]))
        assert len(received._pieces) <= RECEIVED_PIECES_MAX
    assert received.take_all() == data


def test_a_reader_is_woken_once_there_is_enough_or_no_more_will_come() -> None:
    async def story() -> None:
        received = ReceivedBytes()
        enough = received.expect(3)
        received.keep(b"ab")
        assert not enough.done()
        with pytest.raises(AssertionError):
            received.expect(1)
        with pytest.raises(AssertionError):
            received.take_all()
        received.keep(b"c")
        assert enough.done()
        end = received.expect(9)
        received.wake()
        assert end.done()
        received.expect(9).cancel()
        received.keep(b"d")
        received.clear()
        assert received.take_all() == b""

    asyncio.run(story())
