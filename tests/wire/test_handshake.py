"""Hello, the version agreed on, and links that are dead after the first fault."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.golden import CODEC_BY_MAGIC, GOLDEN_FRAMES, MESSAGE_FRAMES
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import FRAME_BYTES_MAX, HELLO_BYTES_MAX
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.admin_protocol import (
    ADMIN_BLOCKS_SINCE,
    ADMIN_CLIENT_GREETING,
    ADMIN_CODEC,
    ADMIN_SERVER_GREETING,
)
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    CLIENT_GREETING,
    SERVER_GREETING,
    FeedData,
    FlushRequest,
    ServerPartitionsHealthRequest,
)
from waltz.wire.frame import FRAME_HEADER, encode_frame
from waltz.wire.handshake import HELLO_MAGIC, HELLO_VERSIONS_MAX, Hello, Link, decode_hello
from waltz.wire.message import Codec
from waltz.wire.storage_protocol import (
    CLIENT_NOTES_SINCE,
    STORAGE_CLIENT_GREETING,
    STORAGE_CODEC,
    STORAGE_SERVER_GREETING,
)

REQUEST_ID = RequestId(ClientId(7), Generation(3), PartitionId(2), 5)
FLUSH = FlushRequest(REQUEST_ID)
GOLDEN = {golden.name: golden.frame for golden in GOLDEN_FRAMES}

CUTS = st.lists(st.integers(0, 2**14), max_size=20)


def connected(version: int = 4) -> Link:
    link = Link(CLIENT_CODEC, SERVER_GREETING)
    link.hello()
    assert link.receive(Hello((version,), "peer").encode()) == []
    return link


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


@pytest.mark.parametrize(
    ("name", "codec", "greeting"),
    [
        ("hello client", CLIENT_CODEC, CLIENT_GREETING),
        ("hello server", CLIENT_CODEC, SERVER_GREETING),
        ("hello Waltz Storage Client", STORAGE_CODEC, STORAGE_CLIENT_GREETING),
        ("hello Waltz Storage Server", STORAGE_CODEC, STORAGE_SERVER_GREETING),
        ("hello Waltz Storage Admin Client", ADMIN_CODEC, ADMIN_CLIENT_GREETING),
        ("hello Waltz Storage Admin Server", ADMIN_CODEC, ADMIN_SERVER_GREETING),
    ],
)
def test_hello_is_that_of_the_original(name: str, codec: Codec, greeting: str) -> None:
    """CS-02; the storage protocols of this release have a version more."""
    frame = GOLDEN[name]
    assert frame is not None
    theirs = decode_hello(frame[7:])
    assert theirs.encode() == frame
    assert theirs.greeting == greeting
    assert codec.versions[: len(theirs.versions)] == theirs.versions
    if theirs.versions == codec.versions:
        assert Link(codec, greeting).hello() == frame


@pytest.mark.parametrize("codec", [STORAGE_CODEC, ADMIN_CODEC])
def test_a_peer_of_the_original_is_spoken_to_in_its_version(codec: Codec) -> None:
    """CS-02: the latest version that both have among ourselves, version 0 with the original."""
    latest = codec.versions[-1]
    assert codec.versions == tuple(range(latest + 1))
    assert latest == (CLIENT_NOTES_SINCE if codec is STORAGE_CODEC else ADMIN_BLOCKS_SINCE)
    for versions, expected in (((0,), 0), ((0, 1), 1), ((0, 1, 2, 3, 4, 5, 6), latest)):
        link = Link(codec, "")
        assert decode_hello(link.hello()[7:]).versions == codec.versions
        link.receive(Hello(versions, "peer").encode())
        assert link.version == expected


def test_an_empty_greeting_is_that_of_the_original() -> None:
    assert Hello((0,), "").encode().hex() == "4800000000000a00000001000000000000"


def test_keep_alives_are_those_of_the_original() -> None:
    """CS-03."""
    link = Link(CLIENT_CODEC, CLIENT_GREETING)
    assert link.keep_alive() == GOLDEN["keepalive hello"]
    assert connected().keep_alive() == GOLDEN["keepalive V4"]
    storage = Link(STORAGE_CODEC, STORAGE_CLIENT_GREETING)
    storage.receive(Hello((0,), "").encode())
    assert storage.keep_alive() == GOLDEN["keepalive S0"]


def test_keep_alives_are_ignored_before_and_after_the_handshake() -> None:
    client, server = Link(CLIENT_CODEC, "c"), Link(CLIENT_CODEC, "s")
    stream = client.keep_alive() + client.hello()
    client.receive(server.hello())
    stream += client.keep_alive() + client.encode(FLUSH) + client.keep_alive()
    assert server.receive(stream) == [FLUSH]


@given(st.sets(st.integers(-(2**15), 2**15 - 1), max_size=8), st.sets(st.integers(0, 5)))
def test_both_ends_take_the_highest_common_version(others: set[int], shared: set[int]) -> None:
    """CS-02; versions that one side does not know are ignored."""
    offered = {version for version in others if not 0 <= version <= 5} | shared
    link = Link(CLIENT_CODEC, SERVER_GREETING)
    hello = Hello(tuple(offered), "x").encode()
    if shared:
        link.receive(hello)
        assert link.version == max(shared)
    else:
        with pytest.raises(RemoteProtocolError, match="no common version with 'x'"):
            link.receive(hello)
        assert link.version is None


def test_with_no_common_version_the_own_hello_is_out_already() -> None:
    """CS-02: nobody waits for the other, so the peer learns which versions there are."""
    link = Link(CLIENT_CODEC, SERVER_GREETING)
    sent = link.hello()
    with pytest.raises(RemoteProtocolError, match=r"speaks \[9\], this side \[0, 1, 2, 3, 4, 5\]"):
        link.receive(Hello((9,), "x").encode())
    assert decode_hello(sent[7:]).versions == CLIENT_CODEC.versions


def test_the_greeting_of_the_peer_is_kept_for_log_lines() -> None:
    link = Link(CLIENT_CODEC, SERVER_GREETING)
    assert link.peer_greeting is None
    link.receive(Hello((4,), "somebody").encode())
    assert link.peer_greeting == "somebody"


def test_a_second_hello_from_the_peer_is_refused() -> None:
    """CS-02."""
    link = connected()
    with pytest.raises(RemoteProtocolError, match="magic 0x48"):
        link.receive(Hello((4,), "again").encode())


def test_a_second_hello_to_the_peer_is_refused() -> None:
    link = connected()
    with pytest.raises(LocalProtocolError, match="second Hello"):
        link.hello()
    assert link.receive(link.encode(FLUSH)) == [FLUSH]


def test_nothing_is_encoded_before_the_version_is_known() -> None:
    link = Link(CLIENT_CODEC, CLIENT_GREETING)
    link.hello()
    with pytest.raises(LocalProtocolError, match="before the peer's Hello"):
        link.encode(FLUSH)


def test_a_message_that_the_version_lacks_is_refused_and_the_link_lives_on() -> None:
    link = connected(version=3)
    with pytest.raises(LocalProtocolError, match="upgrade servers"):
        link.encode(ServerPartitionsHealthRequest(REQUEST_ID))
    assert link.receive(link.encode(FLUSH)) == [FLUSH]


def test_a_client_on_a_storage_port_is_told_the_magics() -> None:
    """CS-05."""
    client, storage = Link(CLIENT_CODEC, "c"), Link(STORAGE_CODEC, "s")
    storage.receive(client.hello())
    client.receive(storage.hello())
    with pytest.raises(RemoteProtocolError, match=r"magic 0x4c .*expected magic 0x53 \(S\)"):
        storage.receive(client.encode(FLUSH))


@pytest.mark.parametrize("version", CLIENT_CODEC.versions)
@given(cuts=CUTS)
def test_any_pieces_give_the_same_messages(version: int, cuts: list[int]) -> None:
    golden = [frame for name, frame in MESSAGE_FRAMES if name.startswith(f"V{version} ")]
    expected = [CLIENT_CODEC.decode(frame[7:], version) for frame in golden]
    link = Link(CLIENT_CODEC, SERVER_GREETING)
    stream = Hello((version,), "peer").encode() + b"".join(golden)
    assert [
        message for piece in pieces(stream, cuts) for message in link.receive(piece)
    ] == expected


@pytest.mark.parametrize("magic", sorted(CODEC_BY_MAGIC))
def test_byte_by_byte_each_message_comes_with_its_last_byte(magic: int) -> None:
    codec = CODEC_BY_MAGIC[magic]
    version = codec.versions[-1]
    link = Link(codec, "x")
    assert [link.receive(bytes([byte])) for byte in Hello((version,), "y").encode()][-1] == []
    for _, frame in MESSAGE_FRAMES:
        if (frame[0], frame[2]) == (magic, version):
            for byte in frame[:-1]:
                assert link.receive(bytes([byte])) == []
            assert link.receive(frame[-1:]) == [codec.decode(frame[7:], version)]


FAULTS: dict[str, bytes] = {
    "HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "unknown type": encode_frame(ord("L"), 4, [b"\x63" + bytes(16)]),
    "no type": encode_frame(ord("L"), 4, [b"\x08"]),
    "trailing byte": encode_frame(ord("L"), 4, [b"\x08" + bytes(17)]),
    "wrong version": encode_frame(ord("L"), 3, [b"\x08" + bytes(16)]),
    "huge frame": FRAME_HEADER.pack(ord("L"), 4, FRAME_BYTES_MAX + 1),
    "negative frame": FRAME_HEADER.pack(ord("L"), 4, -1),
    "second Hello": Hello((4,), "").encode(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault_the_link_is_dead(fault: str) -> None:
    link = connected()
    assert link.receive(connected().encode(FLUSH)) == [FLUSH]
    with pytest.raises(RemoteProtocolError) as caught:
        link.receive(FAULTS[fault])
    calls: list[Callable[[], object]] = [
        lambda: link.receive(b""),
        lambda: link.receive(connected().encode(FLUSH)),
        lambda: link.encode(FLUSH),
        link.hello,
        link.keep_alive,
    ]
    for call in calls:
        with pytest.raises(RemoteProtocolError) as again:
            call()
        assert str(again.value) == str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00\x00",
        struct.pack(">i", -1),
        struct.pack(">i", 2**30),
        struct.pack(">i", HELLO_VERSIONS_MAX + 1) + bytes(2 * HELLO_VERSIONS_MAX + 6),
        struct.pack(">ihi", 1, 4, 5) + b"abcd",
        struct.pack(">ihi", 1, 4, 2) + b"\xff\xff",
        struct.pack(">ihi", 1, 4, 0) + b"x",
    ],
)
def test_a_broken_hello_is_refused(body: bytes) -> None:
    link = Link(CLIENT_CODEC, SERVER_GREETING)
    with pytest.raises(RemoteProtocolError):
        link.receive(FRAME_HEADER.pack(HELLO_MAGIC, 0, len(body)) + (body or b"GET / HTTP"))


def test_before_the_handshake_frames_are_small() -> None:
    link = Link(CLIENT_CODEC, SERVER_GREETING)
    with pytest.raises(RemoteProtocolError, match=f"expected 0 to {HELLO_BYTES_MAX}"):
        link.receive(FRAME_HEADER.pack(HELLO_MAGIC, 0, HELLO_BYTES_MAX + 1))


def test_an_http_request_instead_of_a_hello_is_shown() -> None:
    """CS-04."""
    with pytest.raises(RemoteProtocolError, match="GET / HTTP"):
        Link(CLIENT_CODEC, SERVER_GREETING).receive(b"GET / HTTP/1.1\r\n\r\n")


def test_many_small_frames_in_one_piece() -> None:
    link = connected()
    data = [FeedData(REQUEST_ID, TransactionId(number), 1) for number in range(5000)]
    assert link.receive(b"".join(map(link.encode, data))) == data


def test_a_peer_that_has_to_open_sends_small_frames_until_then() -> None:
    link = Link(STORAGE_CODEC, STORAGE_SERVER_GREETING, opens=True)
    link.hello()
    link.receive(Hello((0,), "peer").encode())
    frame = FRAME_HEADER.pack(STORAGE_CODEC.magic, 0, HELLO_BYTES_MAX + 1)
    link.opened()
    assert link.receive(frame) == []
    stranger = Link(STORAGE_CODEC, STORAGE_SERVER_GREETING, opens=True)
    stranger.receive(Hello((0,), "peer").encode())
    with pytest.raises(RemoteProtocolError, match=f"expected 0 to {HELLO_BYTES_MAX}"):
        stranger.receive(frame)


@given(CUTS)
def test_hello_and_first_message_are_taken_apart_from_what_follows(cuts: list[int]) -> None:
    """What follows may belong to another link."""
    opening = Link(CLIENT_CODEC, SERVER_GREETING, opens=True)
    stream = Hello((5,), "peer").encode() + connected(5).encode(FLUSH)
    rest = b"whatever it is"
    greeted: bytes | None = None
    first = None
    for piece in pieces(stream + rest, cuts):
        if first is not None:
            first = first[0], first[1] + piece
        elif greeted is None:
            greeted = opening.greet(piece)
            first = None if greeted is None else opening.receive_first(greeted)
        else:
            first = opening.receive_first(piece)
    assert first == (FLUSH, rest)


def test_a_fault_in_the_opening_kills_the_link() -> None:
    for data in (b"GET / HTTP/1.1", Hello((9,), "x").encode()):
        link = Link(CLIENT_CODEC, SERVER_GREETING)
        with pytest.raises(RemoteProtocolError):
            link.greet(data)
        with pytest.raises(RemoteProtocolError):
            link.hello()
    link = Link(CLIENT_CODEC, SERVER_GREETING)
    assert link.greet(Hello((5,), "x").encode()) == b""
    with pytest.raises(RemoteProtocolError, match="unknown message type"):
        link.receive_first(encode_frame(ord("L"), 5, [b"\x7f"]))
    with pytest.raises(RemoteProtocolError, match="unknown message type"):
        link.encode(FLUSH)


def test_a_codec_may_be_held_back() -> None:
    """Whoever is not to speak a version yet does not offer it."""
    held = CLIENT_CODEC.up_to(4)
    assert decode_hello(Link(held, "x").hello()[7:]).versions == (0, 1, 2, 3, 4)
    assert CLIENT_CODEC.versions[-1] == 5
