"""Reads a policy file, and tells when it has another content.

Owns which content of a file that people edit is worth reading as a policy: one that two looks in a
row have found, so that a file is not taken while an editor still writes it.
"""

from __future__ import annotations

from waltz.access.policy import Policy
from waltz.errors import ConfigurationError
from waltz.host import Disk


def read_content(disk: Disk, path: str) -> bytes:
    """Return the content of the file, cut off where no policy is as long. Raises
    ConfigurationError: it cannot be read."""
    from waltz.access.policy_text import POLICY_BYTES_MAX

    try:
        file = disk.open_to_read(path)
        try:
            return file.read_at(0, POLICY_BYTES_MAX + 1)
        finally:
            file.close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"cannot read {path}: {reason}") from error


def read_policy(disk: Disk, path: str) -> Policy:
    """Return the policy in the file. Raises ConfigurationError: the file cannot be read, or has a
    fault."""
    return parsed(read_content(disk, path), path)


def parsed(content: bytes, path: str) -> Policy:
    """Return the policy in the content of the file. Raises ConfigurationError: it has a fault."""
    # A server without a policy need not pay for YAML.
    from waltz.access.policy_text import parse_policy

    return parse_policy(content, path)


class Looks:
    """The looks at a file, each of which has found its content, or why it cannot be read."""

    def __init__(self, first: bytes) -> None:
        """`first` is the content that was taken when the process started."""
        self._last: bytes | str = first
        self._judged: bytes | str = first

    def is_news(self, found: bytes | str) -> bool:
        """Note a look; return whether `found` is to be judged now: it was found twice in a row, and
        differs from what was judged last."""
        is_settled = found == self._last
        self._last = found
        if not is_settled or found == self._judged:
            return False
        self._judged = found
        return True
