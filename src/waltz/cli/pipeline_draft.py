"""`waltz pipeline init`: a first definition of tables, from the newest transactions of the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import waltz
from waltz.errors import ConfigurationError
from waltz.spark.pipelines.definition import parse_definition
from waltz.spark.pipelines.draft import Sample, draft
from waltz.types import TlsSettings

SAMPLE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Data that is held to be looked at; the rest of a sample is left out."""


def write_draft(
    definition: Path, cluster: str, target: str, count: int, tls: TlsSettings
) -> tuple[dict[str, Any], str]:
    """Write the file `definition` from the newest `count` transactions of the log; return what was
    found, for programs and for people.

    Raises ConfigurationError: the file is there, or cannot be written, or the log has nothing to
    look at; and as `open_reader`.
    """
    if definition.exists():
        raise ConfigurationError(f"{definition} is there already; name another file, or remove it")
    samples = read_samples(cluster, tls, count)
    if not samples:
        raise ConfigurationError(f"the log of {cluster} has no transactions to look at")
    seen_in = f"the newest transactions of all partitions, {len(samples):,}"
    found = draft(samples, cluster, target, seen_in, _files_of(tls))
    parse_definition(found.text, directory=definition.parent)
    try:
        with definition.open("x") as file:
            file.write(found.text)
    except OSError as error:
        raise ConfigurationError(f"cannot write {definition}: {error.strerror}") from error
    facts = {
        "file": str(definition),
        "sampled": found.sampled,
        "decodable": found.decodable,
        "fields": dict(found.fields),
        "left_out": dict(found.left_out),
    }
    decoded = f"{found.decodable:,} of {found.sampled:,} transactions can be decoded"
    lines = [f"{decoded}, with {len(found.fields)} fields"]
    lines += [f"left out: {name!r}: {why}" for name, why in found.left_out.items()]
    lines.append(f"wrote {definition}; run it once it is as you want it")
    return facts, "\n".join(lines)


def read_samples(cluster: str, tls: TlsSettings, count: int) -> list[Sample]:
    """Return the newest transactions of the log, in equal parts of all partitions, at most `count`
    and `SAMPLE_BYTES_MAX`, at least one of each partition that has some."""
    found: list[Sample] = []
    with waltz.open_reader(cluster, tls=tls) as log:
        share = max(1, count // log.partition_count)
        bytes_max = SAMPLE_BYTES_MAX // log.partition_count
        for partition in range(log.partition_count):
            end, held = log.high_water_mark(partition) + 1, 0
            for columns in log.read(partition, max(0, end - share), end):
                found += map(Sample, columns.headers.tolist(), columns.data)
                held += sum(map(len, columns.data))
                if held > bytes_max:
                    break
    return found


def _files_of(tls: TlsSettings) -> dict[str, str]:
    """Return the files of TLS as a definition has them."""
    named = {
        "ca": tls.authorities,
        "cert": tls.certificate,
        "key": tls.key,
        "token": tls.token_file,
    }
    return {key: str(Path(path).absolute()) for key, path in named.items() if path}
