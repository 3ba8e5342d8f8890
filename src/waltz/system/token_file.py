"""A file of bearer tokens, read again when it changes."""

from __future__ import annotations

import logging
import os
import time
from typing import Final

from waltz.bearer_tokens import TOKEN_FILE_BYTES_MAX, Tokens, parse_tokens
from waltz.errors import ConfigurationError

TOKENS_LOOK_SECONDS: Final = 1.0
"""Time between two looks whether the file has changed."""

log = logging.getLogger(__name__)


class TokenFile:
    """The tokens of the file at `path`. A file that cannot be used any more changes nothing: the
    tokens read before stay in force, and the log says why."""

    def __init__(self, path: str) -> None:
        """Raises ConfigurationError: the file cannot be read, or has a fault."""
        self._path = path
        self._stamp = _stamp(path)
        self._tokens = read_tokens(path)
        self._trouble = ""
        """Why the file could not be used at the last look; empty: it could."""
        self._looked = time.monotonic()

    def name_of(self, token: str) -> str | None:
        """Return the name of a token; None: the file does not have it."""
        if time.monotonic() - self._looked >= TOKENS_LOOK_SECONDS:
            self._looked = time.monotonic()
            self._reload()
        return self._tokens.name_of(token)

    def _reload(self) -> None:
        stamp = _stamp(self._path)
        # After trouble the file is tried again though it looks the same: who may read it may have
        # changed, or this process may have had no descriptor left.
        if stamp == self._stamp and not self._trouble:
            return
        self._stamp = stamp
        try:
            self._tokens = read_tokens(self._path)
        except ConfigurationError as error:
            if str(error) != self._trouble:
                log.error("tokens_not_taken error=%s; the ones read before stay in force", error)
            self._trouble = str(error)
        else:
            self._trouble = ""
            log.info("tokens_read_again path=%s names=%s", self._path, ",".join(self._tokens.names))


def read_tokens(path: str) -> Tokens:
    """Return the tokens of the file. Raises ConfigurationError: it cannot be read, or has a
    fault."""
    try:
        with open(path, "rb") as file:
            content = file.read(TOKEN_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    return parse_tokens(content, path)


def _stamp(path: str) -> object:
    """Return a value that changes when the file does."""
    try:
        status = os.stat(path)
    except OSError as error:
        return error.errno
    return (status.st_mtime_ns, status.st_size, status.st_ino)
