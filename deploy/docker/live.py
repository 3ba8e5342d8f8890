"""Asks whether a process of this container answers at its HTTP port: `live.py [URL]`.

Without a URL it asks the one in the variable WALTZ_LIVE.

Ends with 0 if the answer has a status below 500, else with 1 and the reason. A certificate is not
checked: the question goes to this container itself, and what is asked is whether the process turns.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
import urllib.error
import urllib.request
from typing import Final

SECONDS_MAX: Final = 4.0
"""Longest time that an answer may take: less than the time-out of HEALTHCHECK, so that this program
prints the reason before it is ended."""


def fault(url: str) -> str | None:
    """Return why the process behind the URL is not live; None: it answers."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname = False
    unchecked.verify_mode = ssl.CERT_NONE
    # A proxy that the container's environment names would answer in the place of the process.
    asking = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=unchecked)
    )
    try:
        with asking.open(url, timeout=SECONDS_MAX):
            return None
    except urllib.error.HTTPError as error:
        return None if error.code < 500 else f"{url}: {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{url}: {error}"


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("WALTZ_LIVE", "")
    sys.exit(fault(asked))
