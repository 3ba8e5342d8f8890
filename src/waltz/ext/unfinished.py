"""The answer to a request that the log has not served in time.

Owns the text, which is the same in each framework: whether the request has taken effect is not
known, and no server is named.
"""

from __future__ import annotations

from typing import Final

from waltz.client.token_middleware_shell import RETRY_AFTER_SECONDS
from waltz.errors import ClientClosedError, UnavailableError

UNFINISHED: Final = (
    "the request was not finished in time and may have taken effect: repeat it with its"
    " idempotency key, or look first whether it has"
)
"""Also what is true of a request that has reached no server: it says less than is known there."""

UNFINISHED_STATUS: Final = 503

RETRY_AFTER: Final = {"Retry-After": str(RETRY_AFTER_SECONDS)}

UNFINISHED_ERRORS: Final = (UnavailableError, ClientClosedError)
"""Errors that another attempt may not meet. Of many of them the outcome is unknown; a request may
have done several things, so the answer does not depend on which error it was."""
