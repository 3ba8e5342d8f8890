"""Checkpoints: the text that is signed, and every text that is none."""

from __future__ import annotations

from hashlib import sha256

import pytest

from tests.attest.trees import CLUSTER, PARTITION, known_key
from waltz.attest.checkpoints import Checkpoint, origin_of, parse_checkpoint, verified_checkpoint
from waltz.attest.notes import KeyKind, SecretKey
from waltz.errors import AttestationError

ROOT = sha256(b"root").digest()
KEY = known_key("waltz/test", KeyKind.LOG)
TEXT = (
    "waltz/00112233-4455-6677-8899-aabbccddeeff/3\n"
    "17\n"
    "SBNJTRN+FjG7owHVrKtue7eqdM4RhdRWVl71HXN2d7I=\n"
)


def test_the_text_of_a_checkpoint() -> None:
    checkpoint = Checkpoint(origin_of(CLUSTER, PARTITION), 17, ROOT)
    assert checkpoint.text() == TEXT
    assert parse_checkpoint(TEXT) == checkpoint
    assert parse_checkpoint(TEXT + "an extension line\n") == checkpoint
    assert verified_checkpoint(checkpoint.signed(KEY), KEY.public_key) == checkpoint


def test_a_checkpoint_that_the_key_has_not_signed_is_refused_with_those_who_are_named() -> None:
    note = Checkpoint("somebody/else", 1, ROOT).signed(SecretKey.generate("other", KeyKind.LOG))
    with pytest.raises(AttestationError, match="not signed by waltz/test; by other it says"):
        verified_checkpoint(note, KEY.public_key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "origin\n",
        "origin\n17\n",
        TEXT.removesuffix("\n"),
        TEXT + "\n",
        TEXT.replace("\n17\n", "\n017\n"),
        TEXT.replace("\n17\n", "\n-1\n"),
        TEXT.replace("\n17\n", "\n1_7\n"),
        TEXT.replace("\n17\n", f"\n{2**63}\n"),
        TEXT.replace("\n17\n", f"\n{10**40}\n"),
        TEXT.replace("SBNJ", "SBN"),
        TEXT.replace("SBNJ", "!BNJ"),
        "\n17\n" + TEXT,
    ],
)
def test_what_is_not_a_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(AttestationError):
        parse_checkpoint(text)
