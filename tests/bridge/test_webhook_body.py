"""The body of a post, and its signature as a receiver verifies it."""

from __future__ import annotations

import base64
import json
from uuid import UUID

import pytest

from tests.bridge.receiver import is_genuine
from waltz import RequestId
from waltz.bridge.webhook_body import (
    JSON_BYTES_MAX,
    Content,
    Posted,
    body,
    headers,
    is_json,
    item,
)
from waltz.types import ClientId, Generation, PartitionId

CONTENT = Content(UUID(int=1), UUID(int=2), 3, 4, 5)
REQUEST = RequestId(ClientId(1), Generation(2), PartitionId(3), 4)


def posted(data: bytes) -> Posted:
    return Posted(4, 7, REQUEST, data)


def test_a_body_is_an_array_of_transactions() -> None:
    made = [item(3, posted(b"\xff\0"), as_json=False), item(3, posted(b""), as_json=False)]
    assert json.loads(body(made)) == [
        {
            "partition": 3,
            "transaction_id": 4,
            "header": 7,
            "request_id": REQUEST._asdict(),
            "data_base64": base64.b64encode(data).decode(),
        }
        for data in (b"\xff\0", b"")
    ]


@pytest.mark.parametrize("data", [b'{"a": [1, null]}', b"17", '"ü"'.encode(), b" [] ", b"1e400"])
def test_data_that_is_json_is_put_in_as_such_if_that_is_asked_for(data: bytes) -> None:
    assert json.loads(item(3, posted(data), as_json=True))["data"] == json.loads(data)
    kept = json.loads(item(3, posted(data), as_json=False))
    assert base64.b64decode(kept["data_base64"]) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"NaN",
        b"[1,Infinity]",
        b"\xff",
        b'1}, {"transaction_id": 0',
        b'"\xef\xbf',
        b"[" * 100_000 + b"]" * 100_000,
        b"9" * 10_000,
        b"\xef\xbb\xbf{}",
        b'"' + b"a" * JSON_BYTES_MAX + b'"',
    ],
)
def test_other_data_is_base64_and_cannot_break_out_of_its_place(data: bytes) -> None:
    found = json.loads(item(3, posted(data), as_json=True))
    assert base64.b64decode(found["data_base64"]) == data
    assert "data" not in found
    assert len(data) > JSON_BYTES_MAX or not is_json(data)


def test_a_receiver_knows_what_is_genuine() -> None:
    import time

    secret, other = b"0123456789abcdef", b"fedcba9876543210"
    text = body([item(3, posted(b"x"), as_json=False)])
    made = dict(headers(CONTENT, text, [secret], int(time.time())))
    assert is_genuine(made, text, secret)
    assert not is_genuine(made, text, other)
    assert not is_genuine(made, text + b" ", secret)
    for name in made:
        if name != "Waltz-Signature":
            assert not is_genuine({**made, name: made[name] + "0"}, text, secret), name
    old = dict(headers(CONTENT, text, [secret], int(time.time()) - 400))
    assert not is_genuine(old, text, secret), "played again later"
    both = dict(headers(CONTENT, text, [other, secret], int(time.time())))
    assert is_genuine(both, text, secret)
    assert is_genuine(both, text, other)


def test_the_signature_is_what_is_documented() -> None:
    made = dict(headers(CONTENT, b"[]", [b"0123456789abcdef"], 1_700_000_000))
    assert made["Waltz-Cluster"] == "00000000-0000-0000-0000-000000000001"
    assert made["Waltz-History"] == "00000000-0000-0000-0000-000000000002"
    assert (made["Waltz-Partition"], made["Waltz-First"], made["Waltz-Last"]) == ("3", "4", "5")
    # printf %s "$signed" | openssl dgst -sha256 -hmac 0123456789abcdef
    expected = "89d465d65115de33203f3e6c295e3ab5872695ea442e0ee7d5925f72ce7bfc2d"
    assert made["Waltz-Signature"] == f"v1={expected}"
