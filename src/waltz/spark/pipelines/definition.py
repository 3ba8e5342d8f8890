"""What a pipeline is to do, as its file says. Pure: the file's text in, a value out.

pipeline: archive
cluster: 127.0.0.1:7100
target: /var/lib/waltz/archive
partitions: 0-3
spark:
  spark.master: local[2]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_DEFINITION
from waltz.spark.offsets import parse_partitions
from waltz.types import PartitionId, TlsSettings, parse_coordinator

KINDS: Final = ("archive",)
KEYS: Final = ("pipeline", "cluster", "target", "partitions", "tls", "spark")
TLS_KEYS: Final = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class PipelineDefinition:
    """`spark` are Spark's settings; `partitions` None is all of them."""

    kind: str
    cluster: str
    target: Path
    partitions: tuple[PartitionId, ...] | None = None
    tls: TlsSettings = field(default_factory=TlsSettings)
    spark: Mapping[str, str] = field(default_factory=dict)


def parse_definition(text: str, *, directory: Path) -> PipelineDefinition:
    """Return what the file's `text` says; paths in it are relative to `directory`.

    Raises ConfigurationError, naming the key.
    """
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{INVALID_DEFINITION} not YAML: {error}") from None
    given = _mapping("the file", found, KEYS)
    for key in ("pipeline", "cluster", "target"):
        if key not in given:
            raise ConfigurationError(f"{INVALID_DEFINITION} {key} is missing")
    if given["pipeline"] not in KINDS:
        raise ConfigurationError(
            f"{INVALID_DEFINITION} pipeline is {given['pipeline']!r}; expected one of"
            f" {', '.join(KINDS)}"
        )
    cluster = str(given["cluster"])
    try:
        parse_coordinator(cluster)
    except ConfigurationError as error:
        raise ConfigurationError(f"{INVALID_DEFINITION} cluster: {error}") from error
    tls = _mapping("tls", given.get("tls", {}), TLS_KEYS)
    files = {key: str(directory / str(tls[key])) for key in TLS_KEYS if key in tls}
    spark = _mapping("spark", given.get("spark", {}))
    return PipelineDefinition(
        kind=given["pipeline"],
        cluster=cluster,
        target=directory / str(given["target"]),
        partitions=parse_partitions(str(given["partitions"])) if "partitions" in given else None,
        tls=TlsSettings(files.get("cert"), files.get("key"), authorities=files.get("ca")),
        spark={key: _spark_text(value) for key, value in spark.items()},
    )


def _mapping(name: str, found: object, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigurationError(f"{INVALID_DEFINITION} {name} is {found!r:.80}; expected keys")
    for key in found:
        if keys is not None and key not in keys:
            raise ConfigurationError(
                f"{INVALID_DEFINITION} {name} has the unknown key {key!r}; known are"
                f" {', '.join(keys)}"
            )
    return found


def _spark_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
