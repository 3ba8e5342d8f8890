"""Asking witnesses over HTTP to cosign a checkpoint: C2SP tlog-witness, the log's side."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Final
from urllib.parse import urlsplit

import click

from waltz.attest.checkpoints import parse_checkpoint, parse_number
from waltz.attest.merkle import LEAVES_MAX, TreeHashes
from waltz.attest.notes import NOTE_BYTES_MAX, KeyKind, Note, PublicKey, Signature, parse_signatures
from waltz.cli.prove import read_public_key
from waltz.errors import AttestationError, ConfigurationError, ConnectionFailedError

WITNESS_SECONDS_MAX: Final = 15.0
"""Seconds for which a witness may be silent."""

TRIES: Final = 3
"""Requests to one witness: the first may only tell what the witness has cosigned last, and another
attester may have been faster than the second."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A witness to ask: the URL before /add-checkpoint, and its public key."""

    url: str
    key: PublicKey

    @classmethod
    def parse(cls, text: str) -> Witness:
        """Return the witness written as URL=KEY or URL=FILE. Raises click.UsageError;
        ConfigurationError: it is no key, or the key of a log."""
        url, equals, key = text.partition("=")
        if not equals or not _is_url(url):
            raise click.UsageError(f"--witness {text[:80]!r}; expected http[s]://HOST:PORT=KEY")
        public = read_public_key(key)
        if public.kind is not KeyKind.WITNESS:
            raise ConfigurationError(f"{public.name} is the key of a log, and witnesses nothing")
        return cls(url.rstrip("/"), public)

    def cosign(self, note: Note, tree: TreeHashes) -> Signature:
        """Return the witness's signature of a checkpoint, verified.

        Raises ConnectionFailedError: it does not answer; AttestationError: it refuses, with its
        words.
        """
        size = parse_checkpoint(note.text).size
        old = 0
        for _ in range(TRIES):
            status, kind, text = self._post(_request_text(old, tree.consistency_proof(old), note))
            if status == 200:
                return self._signature_of(note, text)
            if status != 409 or kind != "text/x.tlog.size":
                raise AttestationError(f"{self.key.name} refuses, status {status}: {text.strip()}")
            old = parse_number(text.strip(), LEAVES_MAX)
            if old > size:
                raise AttestationError(
                    f"{self.key.name} has cosigned {old} transactions before; this checkpoint has"
                    f" {size}: the archive was set back, or another attester is ahead"
                )
        raise AttestationError(f"{self.key.name} names another size each time, {old} last")

    def _signature_of(self, note: Note, text: str) -> Signature:
        for each in parse_signatures(text):
            if self.key.verified_time(Note(note.text, (each,))) is not None:
                return each
        raise AttestationError(f"{self.url} has not signed with the key of {self.key.name}")

    def _post(self, text: str) -> tuple[int, str, str]:
        request = urllib.request.Request(  # noqa: S310 -- `parse` takes http and https only
            f"{self.url}/add-checkpoint", text.encode(), {"Content-Type": "text/plain"}
        )
        try:
            with urllib.request.urlopen(request, timeout=WITNESS_SECONDS_MAX) as answer:  # noqa: S310
                return answer.status, "", answer.read(NOTE_BYTES_MAX).decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            said = error.read(NOTE_BYTES_MAX).decode("utf-8", "replace")
            return error.code, error.headers.get_content_type(), said
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise ConnectionFailedError(f"witness {self.url} does not answer: {reason}") from None
        except HTTPException as error:
            raise ConnectionFailedError(
                f"witness {self.url} does not answer as a witness: {error!r:.200}"
            ) from None


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or the address is none
        return False


def _request_text(old: int, proof: Sequence[bytes], note: Note) -> str:
    hashes = "".join(f"{base64.b64encode(each).decode()}\n" for each in proof)
    return f"old {old}\n{hashes}\n{note}"
