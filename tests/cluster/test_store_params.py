"""Parameters and counters, in the original's bytes (CM-02)."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.cluster.golden import TREES, VALUES, golden_tree
from waltz.cluster.store_params import (
    ClusterParams,
    StoreParams,
    decode_counter,
    encode_counter,
)
from waltz.errors import LocalProtocolError, RemoteProtocolError

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")


def test_cluster_params_are_those_of_the_original() -> None:
    params = ClusterParams("demo", 4)
    assert params.encode() == VALUES["ClusterParams"]
    assert ClusterParams.decode(VALUES["ClusterParams"]) == params


def test_store_params_are_those_of_the_original() -> None:
    assert StoreParams(KEY, 4).encode() == VALUES["StoreParams"]
    assert StoreParams.decode(VALUES["StoreParams"]) == StoreParams(KEY, 4)


@pytest.mark.parametrize("name", TREES[1:])
def test_the_original_trees_agree_with_themselves(name: str) -> None:
    tree = golden_tree(name)
    cluster = ClusterParams.decode(tree["/waltz_cluster"].data or b"")
    store = StoreParams.decode(tree["/waltz_cluster/store"].data or b"")
    assert cluster == ClusterParams("golden", 2)
    assert store.partition_count == 2
    assert decode_counter(tree["/waltz_cluster/ids/client"].data or b"") < 10


def test_counters_are_ints() -> None:
    assert encode_counter(258).hex() == "00000102"
    assert decode_counter(bytes.fromhex("00000102")) == 258
    with pytest.raises(LocalProtocolError):
        encode_counter(2**31)


@pytest.mark.parametrize("length", range(4))
def test_a_cut_counter_is_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_counter(bytes(length))


@pytest.mark.parametrize("kind", [ClusterParams, StoreParams])
def test_every_cut_is_refused(kind: type[ClusterParams] | type[StoreParams]) -> None:
    data = VALUES[kind.__name__]
    for length in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            kind.decode(data[:length])


def test_a_wrong_magic_or_version_is_refused() -> None:
    data = VALUES["ClusterParams"]
    with pytest.raises(RemoteProtocolError, match="expected -1259834553"):
        ClusterParams.decode(b"\0" + data[1:])
    with pytest.raises(RemoteProtocolError, match="expected 1"):
        ClusterParams.decode(data[:4] + b"\2" + data[5:])


@pytest.mark.parametrize("count", [0, -1, 2**31 - 1])
def test_an_impossible_number_of_partitions_is_refused(count: int) -> None:
    with pytest.raises(RemoteProtocolError, match="partitions"):
        StoreParams.decode(StoreParams(KEY, count).encode())
    with pytest.raises(RemoteProtocolError, match="partitions"):
        ClusterParams.decode(ClusterParams("x", count).encode())
