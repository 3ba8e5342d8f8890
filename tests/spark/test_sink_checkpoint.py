"""The file that says which cluster a stream's checkpoint is of."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from waltz.errors import ConfigurationError, HistoryChangedError
from waltz.spark.sink_checkpoint import (
    FILE_NAME,
    SinkCheckpoint,
    WrittenLog,
    expect_cluster,
    expect_log,
)

A, B = (WrittenLog(UUID(int=number)) for number in (1, 2))
RESTORED = WrittenLog(A.cluster_key, UUID(int=3))


@pytest.fixture
def checkpoint(tmp_path: Path) -> SinkCheckpoint:
    """As Spark has left it before the first batch."""
    (tmp_path / "metadata").write_text('{"id":"q"}')
    found = SinkCheckpoint.at(str(tmp_path))
    assert found is not None
    return found


def test_a_checkpoint_stays_with_the_first_cluster(checkpoint: SinkCheckpoint) -> None:
    """F-1: both keys, the address and the remedy are in the error."""
    checkpoint.bind(A, "a:1")
    checkpoint.bind(A, "elsewhere:1")
    before = (checkpoint.directory / FILE_NAME).read_bytes()
    for _ in range(2):
        with pytest.raises(HistoryChangedError) as raised:
            checkpoint.bind(B, "b:1")
        said = str(raised.value)
        assert said.startswith("WALTZ-2003 ")
        assert f"while cluster {A.cluster_key} was written to, and b:1 leads to" in said
        assert f" leads to cluster {B.cluster_key}. Nothing was written" in said
        assert "Nothing was written. Write to the previous cluster, or use another check" in said
    assert (checkpoint.directory / FILE_NAME).read_bytes() == before
    assert sorted(path.name for path in checkpoint.directory.iterdir()) == ["metadata", FILE_NAME]


def test_of_two_that_begin_at_once_one_cluster_has_the_checkpoint(
    checkpoint: SinkCheckpoint,
) -> None:
    keys = [uuid4() for _ in range(8)]

    def bind(key: UUID) -> bool:
        try:
            checkpoint.bind(WrittenLog(key), "c:1")
        except HistoryChangedError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        bound = list(threads.map(bind, keys))
    assert bound.count(True) == 1
    assert (
        UUID(json.loads((checkpoint.directory / FILE_NAME).read_text())["cluster"])
        == (keys[bound.index(True)])
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"format": 3, "cluster": "00000000-0000-0000-0000-000000000001"}',
        b'{"format": 2, "cluster": "00000000-0000-0000-0000-000000000001"}',
        b'{"format": 1, "cluster": 7}',
    ],
)
def test_a_note_that_cannot_be_read_is_no_cluster_and_is_kept(
    checkpoint: SinkCheckpoint, content: bytes
) -> None:
    path = checkpoint.directory / FILE_NAME
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"WALTZ-1006 .*waltz-sink\.json"):
        checkpoint.bind(A, "a:1")
    assert path.read_bytes() == content


def test_a_checkpoint_that_goes_away_is_an_error(checkpoint: SinkCheckpoint) -> None:
    (checkpoint.directory / "metadata").unlink()
    checkpoint.directory.rmdir()
    with pytest.raises(ConfigurationError, match=r"WALTZ-1006 cannot note in .*No such file"):
        checkpoint.bind(A, "a:1")


def test_only_a_directory_with_sparks_own_file_is_a_checkpoint(tmp_path: Path) -> None:
    directory = tmp_path / "a:b"
    directory.mkdir()
    places = (str(directory), f"file:{directory}", f"file://{directory}", f"FILE://host{directory}")
    for each in places:
        assert SinkCheckpoint.at(each) is None, "a path of another file system, perhaps"
    (directory / "metadata").write_text("{}")
    for each in places:
        assert SinkCheckpoint.at(each) == SinkCheckpoint(directory)
    for each in (f"hdfs://{directory}", f"s3a://bucket{directory}", f"dbfs:{directory}"):
        assert SinkCheckpoint.at(each) is None


def test_another_cluster_than_the_expected_one_is_named_with_it() -> None:
    a, b = A.cluster_key, B.cluster_key
    named = f"b:1 leads to cluster {b}; expected cluster .*{a}"
    expect_log(A, A, "a:1")
    with pytest.raises(HistoryChangedError, match=named):
        expect_cluster(b, a, "b:1")
    with pytest.raises(HistoryChangedError, match=named):
        expect_log(B, A, "b:1")


def test_a_write_does_not_go_on_after_a_restore() -> None:
    with pytest.raises(HistoryChangedError, match=r"^WALTZ-2017 the write began with the first h"):
        expect_log(RESTORED, A, "a:1")


def test_a_checkpoint_is_good_for_one_history(checkpoint: SinkCheckpoint) -> None:
    """Nobody can say which rows of the batches that are over are in the restored log."""
    checkpoint.bind(A, "a:1")
    with pytest.raises(HistoryChangedError) as raised:
        checkpoint.bind(RESTORED, "a:1")
    said = str(raised.value)
    assert said.startswith(f"WALTZ-2017 the checkpoint {checkpoint.directory} was made while the")
    assert f"first history of cluster {A.cluster_key} was written to. The log was restored" in said
    assert f"a:1 leads to history {RESTORED.history} of cluster {A.cluster_key}." in said
    assert "append what is missing, and use another checkpoint" in said


@pytest.mark.parametrize(
    ("log", "content"),
    [
        (A, '{"format": 1, "cluster": "00000000-0000-0000-0000-000000000001"}'),
        (
            RESTORED,
            (
                '{"format": 2, "cluster": "00000000-0000-0000-0000-000000000001", "history": '
                '"00000000-0000-0000-0000-000000000003"}'
            ),
        ),
    ],
)
def test_the_bytes_of_a_note_are_those_that_were_pinned(
    checkpoint: SinkCheckpoint, log: WrittenLog, content: str
) -> None:
    """Without a restore they are those of earlier releases, which refuse format 2."""
    checkpoint.bind(log, "a:1")
    assert (checkpoint.directory / FILE_NAME).read_text() == content
    checkpoint.bind(log, "a:1")
