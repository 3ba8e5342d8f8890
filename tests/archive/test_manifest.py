"""Manifests: golden bytes, round trips, and what may not follow on what."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.archive.archives import KEY, NOW, OTHER_KEY
from waltz.archive.manifest import (
    MILLISECONDS_PER_DAY,
    MILLISECONDS_PER_HOUR,
    ArchivedFile,
    Contents,
    Cut,
    Manifest,
    TimeMark,
    decode_head,
    decode_manifest,
    digest_of,
    encode_head,
    encode_manifest,
    everything,
    following,
    is_cut_name,
    object_path,
    thinned,
)
from waltz.errors import CorruptionError
from waltz.types import NOTHING, PartitionId, ReplicaId, TransactionId

GOLDEN = Path(__file__).parent.parent / "golden" / "archive"
ZERO = PartitionId(0)


def file(
    first: int, end: int, *, partition: int = 0, unique: str = "00112233445566aa"
) -> ArchivedFile:
    return ArchivedFile(
        object_path(partition, first, end, unique),
        PartitionId(partition),
        TransactionId(first),
        TransactionId(end),
        1_000,
        2_000,
        800,
        "a" * 64,
        "b" * 64,
        "c" * 64,
    )


def marks(*values: tuple[int, int]) -> tuple[TimeMark, ...]:
    return tuple(TimeMark(TransactionId(one), other) for one, other in values)


EXAMPLE = Manifest(
    7,
    "d" * 64,
    NOW,
    "0123456789abcdef",
    files=(file(20, 30), file(0, 5, partition=3)),
    removed={file(0, 10).path: NOW},
    time_marks={ZERO: marks((29, NOW))},
    cuts=(Cut("before-month-end", {ZERO: TransactionId(29), PartitionId(3): NOTHING}, NOW),),
    nodes={"/store/params": b"\0\1\2", "/notes": b""},
    verified={ZERO: (ReplicaId("db1:55280"), ReplicaId("db2:55280"))},
)


def test_a_manifest_and_a_head_of_format_1_have_these_bytes() -> None:
    golden = (GOLDEN / "manifest.json").read_bytes()
    assert encode_manifest(KEY, EXAMPLE) == golden
    assert decode_manifest(golden, KEY, 7) == EXAMPLE
    head = (GOLDEN / "archive.json").read_bytes()
    assert encode_head(KEY) == head
    assert decode_head(head) == KEY


def test_a_manifest_of_another_archive_or_place_is_refused() -> None:
    data = encode_manifest(KEY, EXAMPLE)
    with pytest.raises(CorruptionError, match="of cluster"):
        decode_manifest(data, OTHER_KEY, 7)
    with pytest.raises(CorruptionError, match="has number 7"):
        decode_manifest(data, KEY, 8)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("files", 0, "path"), "../../etc/passwd"),
        (("files", 0, "path"), "log/0/../1.wal"),
        (("files", 0, "partition"), 1),
        (("files", 0, "first"), 19),
        (("files", 0, "end"), 20),
        (("files", 0, "bytes"), 2**62),
        (("files", 0, "raw_bytes"), 2**40),
        (("files", 0, "footer_at"), 999),
        (("files", 0, "footer_at"), -1),
        (("files", 0, "sha256"), "A" * 64),
        (("files", 0, "level"), 1.5),
        (("files",), {"a": 1}),
        (("removed",), {"manifests/hint": 1}),
        (("times",), {"-1": []}),
        (("times",), {"0": [[1]]}),
        (("cuts",), {"../x": {"marks": {}, "made": 1}}),
        (("cuts",), {"x": {"marks": {"0": -2}, "made": 1}}),
        (("coordinator",), {"/a": "?"}),
        (("coordinator",), {"/a": 7}),
        (("verified",), {"0": [7]}),
        (("full",), 1),
        (("previous",), "x"),
        (("made",), True),
        (("format",), 2),
    ],
)
def test_impossible_values_are_refused(keys: tuple[Any, ...], value: object) -> None:
    document = json.loads(encode_manifest(KEY, EXAMPLE))
    place = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    with pytest.raises(CorruptionError):
        decode_manifest(json.dumps(document).encode(), KEY, 7)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=5,
    ),
    st.sampled_from(sorted(json.loads(encode_manifest(KEY, EXAMPLE)))),
)
def test_any_other_value_is_refused_or_means_something(value: object, key: str) -> None:
    document = json.loads(encode_manifest(KEY, EXAMPLE))
    document[key] = value
    try:
        found = decode_manifest(json.dumps(document).encode(), KEY, 7)
    except CorruptionError:
        return
    assert decode_manifest(encode_manifest(KEY, found), KEY, 7) == found


@given(st.binary(max_size=200))
def test_no_bytes_make_anything_but_our_error(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_manifest(data, KEY, 7)
    with pytest.raises(CorruptionError):
        decode_head(data)


def test_manifests_join_up_or_are_refused() -> None:
    first = Manifest(0, None, NOW, "w", is_full=True, files=(file(0, 10),))
    contents = following(Contents(KEY), first, "0" * 64)
    assert contents.end(ZERO) == 10

    def after(**change: Any) -> Contents:
        manifest = Manifest(1, "0" * 64, NOW, "w")
        return following(contents, replace(manifest, **change), "1" * 64)

    assert after(files=(file(10, 12),)).end(ZERO) == 12
    with pytest.raises(CorruptionError, match="the one before it"):
        after(previous="2" * 64)
    with pytest.raises(CorruptionError, match="the one before it"):
        after(number=2)
    with pytest.raises(CorruptionError, match="expected 10"):
        after(files=(file(11, 12),))
    with pytest.raises(CorruptionError, match="expected 10"):
        after(files=(file(0, 5),))
    with pytest.raises(CorruptionError, match="it ended before 10"):
        after(removed={file(0, 10).path: NOW})
    with pytest.raises(CorruptionError, match="it ended before 10"):
        after(removed={file(0, 10).path: NOW}, files=(file(0, 9),))
    merged = after(removed={file(0, 10).path: NOW}, files=(file(0, 12),))
    assert [each.end for each in merged.files[ZERO]] == [12]
    with pytest.raises(CorruptionError, match="do not ascend"):
        after(time_marks={ZERO: marks((5, NOW), (4, NOW))})


def test_a_cut_is_never_replaced() -> None:
    cut = Cut("a", {}, NOW)
    contents = following(Contents(KEY), Manifest(0, None, NOW, "w", cuts=(cut,)), "0" * 64)
    with pytest.raises(CorruptionError, match="there is a cut 'a'"):
        following(contents, Manifest(1, "0" * 64, NOW, "w", cuts=(cut,)), "1" * 64)


def test_a_full_manifest_tells_what_the_others_told_together() -> None:
    contents = Contents(KEY)
    for number in range(5):
        change = Manifest(
            number,
            contents.digest,
            NOW + number,
            "w",
            files=(file(10 * number, 10 * number + 10),),
            time_marks={ZERO: marks((10 * number + 9, NOW + number))},
            cuts=(Cut(f"cut-{number}", {}, NOW),),
            nodes={"/a": b"%d" % number} if number < 3 else None,
            verified={ZERO: (ReplicaId(f"node-{number}"),)},
        )
        full = everything(contents, change)
        assert following(Contents(KEY), full, "9" * 64) == replace(
            following(contents, change, "9" * 64)
        )
        data = encode_manifest(KEY, change)
        contents = following(contents, change, digest_of(data))
    assert contents.nodes == {"/a": b"2"}


def test_old_time_marks_and_removals_are_thinned_out() -> None:
    hour = MILLISECONDS_PER_HOUR
    start = NOW - NOW % hour
    old = marks((1, start), (2, start + 5), (3, start + hour), (4, start + hour + 1))
    assert thinned(old, start + 9 * hour) == (old[1], old[3])
    assert thinned(old, start + hour) == (old[1], old[2], old[3])
    assert thinned(old, 0) == old
    contents = following(
        Contents(KEY), Manifest(0, None, NOW, "w", removed={file(0, 1).path: NOW}), "0" * 64
    )
    for days, count in ((1, 1), (3, 0)):
        change = Manifest(1, "0" * 64, NOW + days * MILLISECONDS_PER_DAY, "w")
        assert len(everything(contents, change).removed) == count


def test_names_of_cuts_are_plain() -> None:
    assert all(map(is_cut_name, ("a", "2026-11", "before.month_end")))
    assert not any(map(is_cut_name, ("", "-a", "a/b", "a b", "a" * 101, "a\n")))
