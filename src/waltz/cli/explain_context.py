"""The request IDs and transactions that a log line or an error names.

Owns the forms in which programs of Waltz print them. Other numbers are left alone: a text may hold
times and addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from waltz.errors import ConfigurationError
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

CONTEXT_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a file that are looked through; a longer file is refused."""

TARGETS_MAX: Final = 20
"""Transactions that one call explains; others that the text names are counted."""

Target = tuple[PartitionId, TransactionId] | RequestId

NUMBER: Final = r"(-?[0-9]{1,10})"
ID: Final = r"([0-9]{1,19})"
GAP: Final = r"""["']?\s*[=:]\s*"""
FIELDS: Final = ("client_id", "generation", "partition_id", "sequence_number")

REQUEST_ID_WITH_NAMES: Final = re.compile(
    r"""\W{1,6}""".join(name + GAP + NUMBER for name in FIELDS)
)
REQUEST_ID_WITH_COLONS: Final = re.compile(
    rf"(?<![\w.:/\[-]){':'.join([NUMBER] * 4)}(?![\w:/\]]|\.[0-9])"
)
REQUEST_ID_WITH_SLASHES: Final = re.compile(
    rf"(?<![\w.:/\[-]){'/'.join([NUMBER] * 4)}(?![\w:/\]]|\.[0-9])"
)
REQUEST_IDS: Final = (REQUEST_ID_WITH_NAMES, REQUEST_ID_WITH_COLONS, REQUEST_ID_WITH_SLASHES)
"""Request IDs in JSON and representations, in errors and `waltz explain`, and in `waltz tail`."""

PARTITION_FIRST: Final = re.compile(
    rf"partition[\"']?[\s=:]\s*{ID}\W{{1,5}}transaction(?:_id)?[\"']?[\s=:]\s*{ID}"
)
TRANSACTION_FIRST: Final = re.compile(
    rf"transaction {ID} (?:of|in) partition (?P<partition>[0-9]{{1,10}})"
)
PLACES: Final = (PARTITION_FIRST, TRANSACTION_FIRST)
"""Transactions in logs, JSON and most errors, and in the other errors."""


def text_of(context: str) -> str:
    """Return the text to look through: that of the file of this name, or else `context` itself.

    Raises ConfigurationError: the file is too long, or cannot be read.
    """
    path = Path(context)
    try:
        if not path.is_file():
            return context
    except (OSError, ValueError):
        return context  # a text that cannot be the name of a file
    try:
        if path.stat().st_size > CONTEXT_BYTES_MAX:
            raise ConfigurationError(
                f"{path} has more than {CONTEXT_BYTES_MAX} bytes; give the lines that matter"
            )
        return path.read_text(errors="replace")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def targets_in(text: str) -> list[Target]:
    """Return what `text` names, in its order, each once."""
    found = sorted(_targets(text), key=lambda each: each[0])
    return list(dict.fromkeys(target for _, target in found))


def _targets(text: str) -> Iterator[tuple[int, Target]]:
    for form in REQUEST_IDS:
        for match in form.finditer(text):
            client, generation, partition, number = map(int, match.groups())
            if all(-(2**31) <= each < 2**31 for each in map(int, match.groups())):
                yield (
                    match.start(),
                    RequestId(
                        ClientId(client), Generation(generation), PartitionId(partition), number
                    ),
                )
    for form in PLACES:
        for match in form.finditer(text):
            numbers = match.groupdict()
            partition = int(numbers.get("partition", match[1]))
            transaction_id = int(match[1] if numbers else match[2])
            if partition < 2**31 and transaction_id < 2**63:
                yield match.start(), (PartitionId(partition), TransactionId(transaction_id))
