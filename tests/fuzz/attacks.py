"""What a broken or hostile peer sends a server or a storage node, made by a seed alone."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final
from uuid import UUID

from tests.fuzz.inputs import NUMBERS, body, mutated, random_bytes
from tests.server.builders import append, request_id, together
from tests.wire.golden import MESSAGE_FRAMES, OWN_FRAMES
from waltz.connections.logical_handshake import Handshake
from waltz.types import NO_SESSION, NOTHING, PartitionId
from waltz.wire.admin_protocol import ADMIN_CODEC, AdminOpenRequest
from waltz.wire.batch_protocol import DataWanted, HeadersRequest, OutcomeRequest, ReadRequest
from waltz.wire.client_protocol import CLIENT_CODEC, MountRequest
from waltz.wire.discovery_protocol import (
    ClientIdRequest,
    PartitionProblemsRequest,
    TopologyRequest,
)
from waltz.wire.frame import FRAME_HEADER_BYTES, encode_frame
from waltz.wire.lifecycle_protocol import (
    FEATURES,
    LIFECYCLE_SINCE,
    Acknowledgement,
    ConnectionEnd,
    Heartbeat,
)
from waltz.wire.message import Codec
from waltz.wire.storage_protocol import STORAGE_CODEC, OpenRequest

PARTITIONS: Final = 8
"""Of the cluster that is attacked: what the original printed is for partition 2."""

CODECS: Final[Mapping[str, Codec]] = {
    "server": CLIENT_CODEC,
    "storage": STORAGE_CODEC,
    "admin": ADMIN_CODEC,
}
"""What is spoken on each port."""

GOLDEN: Final = [frame for _, frame in MESSAGE_FRAMES]
GENERATION: Final = struct.pack(">i", 1)
GENERATION_PLACE: Final = 12
"""In a frame of a client: after the header, the type and the client's ID."""

LATEST: Final = CLIENT_CODEC.versions[-1]
"""Which the original does not speak: it is attacked with what it has of version 4, and its own."""

OWN: Final = request_id()._replace(partition_id=PartitionId(2))
"""Of the client and the partition that the original's mounts are for."""

LATEST_ONLY: Final = [
    CLIENT_CODEC.encode(message, LATEST)
    for message in (
        replace(together(append(1, data=b"one"), append(2, data=b"two")), request_id=OWN),
        DataWanted(OWN),
        OutcomeRequest(OWN, NOTHING),
        ReadRequest(OWN, NOTHING, 10, 1000),
        HeadersRequest(OWN, NOTHING, 10),
        TopologyRequest(True),
        ClientIdRequest(1),
        PartitionProblemsRequest(1),
        Heartbeat(0, True),
        Acknowledgement(0),
        ConnectionEnd("the end"),
    )
]

MOUNT: Final = 0
"""Type of the request that mounts a client on a partition."""


@dataclass(frozen=True)
class Attack:
    """Its kind, and all that is sent on one connection."""

    kind: str
    data: bytes


@dataclass(frozen=True)
class Target:
    """A port: what is spoken there, and the key that opens it."""

    port: str
    key: UUID

    @property
    def codec(self) -> Codec:
        return CODECS[self.port]

    def hello(self, version: int) -> bytes:
        text = struct.pack(">ihi", 1, version, 4) + b"fuzz"
        return encode_frame(ord("H"), 0, [text])

    def opening(self, draw: Random, version: int) -> bytes:
        """What lets in: a Hello, then on a storage node the open request, or for a client of
        version 5 a handshake and, now and then, a mount."""
        hello = self.hello(version)
        match self.port:
            case "storage":
                nobody = (NO_SESSION, -1, PartitionId(-1))
                request = OpenRequest(*nobody, self.key, PARTITIONS)
                return hello + STORAGE_CODEC.encode(request, version)
            case "admin":
                request_of_tools = AdminOpenRequest(-1, self.key, PARTITIONS)
                return hello + ADMIN_CODEC.encode(request_of_tools, version)
            case _:
                mounts = [
                    each for each in self.golden(version) if each[FRAME_HEADER_BYTES] == MOUNT
                ]
                mount = draw.choice(mounts) if draw.random() < 0.5 else b""
                return hello + self.handshake(draw, version) + mount

    def handshake(self, draw: Random, version: int) -> bytes:
        """What a client of that version says between its Hello and all else."""
        if self.port != "server" or version < LIFECYCLE_SINCE:
            return b""
        features = draw.choice((FEATURES, frozenset()))
        return CLIENT_CODEC.encode(Handshake(features).request, version)

    def golden(self, version: int) -> list[bytes]:
        """Sound frames under this version number: what the original says, and what came after."""
        own = [frame for frame in GOLDEN if frame[0] == self.codec.magic]
        if self.port != "server":
            start = struct.pack(">Bh", self.codec.magic, version)
            return [
                *(encode_frame(each[0], version, [each[FRAME_HEADER_BYTES:]]) for each in own),
                *(frame for _, frame in OWN_FRAMES if frame.startswith(start)),
            ]
        if version == LATEST:
            before = [
                encode_frame(each[0], LATEST, [each[FRAME_HEADER_BYTES:]])
                for each in self.golden(LATEST - 1)
            ]
            return before + LATEST_ONLY
        # In the generation that the partitions of a new cluster have, or little would be heard.
        return [
            each[:GENERATION_PLACE] + GENERATION + each[GENERATION_PLACE + 4 :]
            for each in own
            if struct.unpack_from(">h", each, 1) == (version,)
        ]


def attack(target: Target, seed: str) -> Attack:
    """The attack that a seed makes."""
    draw = Random(f"{target.port} {seed}")
    kind = draw.choice(list(KINDS))
    versions = target.codec.versions
    version = versions[-1] if draw.random() < 0.5 else draw.choice(versions)
    return Attack(kind, KINDS[kind](draw, target, version))


def _damaged_hello(draw: Random, target: Target, version: int) -> bytes:
    hello = target.hello(version)
    if (handshake := target.handshake(draw, version)) and draw.random() < 0.5:
        return hello + mutated(draw, handshake, GOLDEN)
    return mutated(draw, hello, GOLDEN)


def _hostile_length(draw: Random, target: Target, version: int) -> bytes:
    """A frame that claims to be of any length; little of it comes."""
    claimed = draw.choice((*NUMBERS, 64 * 1024 + 1, 32 * 1024 * 1024, 32 * 1024 * 1024 + 1))
    header = struct.pack(">Bhi", target.codec.magic, version, (claimed + 2**31) % 2**32 - 2**31)
    before = target.opening(draw, version) if draw.random() < 0.7 else b""
    return before + header + random_bytes(draw)


def _damaged_frame(draw: Random, target: Target, version: int) -> bytes:
    golden = target.golden(version)
    before = b"".join(draw.choice(golden) for _ in range(draw.choice((0, 0, 1, 4))))
    damaged = mutated(draw, draw.choice(golden), golden)
    return target.opening(draw, version) + before + damaged


def _frame_of_its_own_making(draw: Random, target: Target, version: int) -> bytes:
    """Fields as they are declared, with values from the edges."""
    frames = [
        encode_frame(target.codec.magic, version, [body(draw, target.codec, version)])
        for _ in range(draw.choice((1, 1, 3)))
    ]
    return target.opening(draw, version) + b"".join(frames)


def _foreign_frame(draw: Random, target: Target, version: int) -> bytes:
    return target.opening(draw, version) + draw.choice(GOLDEN)


def _too_early(draw: Random, target: Target, version: int) -> bytes:
    """Sound frames before an open request, a handshake or a mount."""
    golden = target.golden(version)
    return target.hello(version) + b"".join(draw.choice(golden) for _ in range(3))


def _half_a_frame(draw: Random, target: Target, version: int) -> bytes:
    whole = target.opening(draw, version) + draw.choice(target.golden(version))
    return whole[: draw.randrange(1, len(whole))]


def _twice(draw: Random, target: Target, version: int) -> bytes:
    return target.opening(draw, version) * 2


def _forged_mount(draw: Random, target: Target, version: int) -> bytes:
    """As some client that may be there, with the highest sequence number, and an append for it."""
    if target.port != "server":
        return _too_early(draw, target, version)
    forged = request_id(client=draw.randrange(1, 50), sequence=draw.choice((1, 2**31 - 1)))
    forged = forged._replace(partition_id=PartitionId(draw.randrange(PARTITIONS)))
    messages = (
        MountRequest(forged, NOTHING, draw.choice((2**31 - 1, 2**63 - 1))),
        replace(append(1, data=b"forged"), request_id=forged),
    )
    frames = b"".join(CLIENT_CODEC.encode(each, version) for each in messages)
    return target.hello(version) + target.handshake(draw, version) + frames


def _random(draw: Random, target: Target, version: int) -> bytes:
    return random_bytes(draw)


KINDS: Final[Mapping[str, Callable[[Random, Target, int], bytes]]] = {
    "random bytes": _random,
    "a damaged Hello or handshake": _damaged_hello,
    "a hostile length": _hostile_length,
    "a damaged frame": _damaged_frame,
    "any values": _frame_of_its_own_making,
    "another protocol": _foreign_frame,
    "too early": _too_early,
    "half a frame": _half_a_frame,
    "opened twice": _twice,
    "a forged mount": _forged_mount,
}
