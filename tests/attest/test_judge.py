"""Trees and proofs, judged by implementations that others have written."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.attest.go_judge import built, judged
from tests.attest.trees import CLUSTER, PARTITION, MemoryBlocks, MemoryFiles, block_of, known_key
from waltz.attest.attester import Attester, prove
from waltz.attest.merkle import TreeHashes
from waltz.attest.notes import KeyKind, Note, Signature
from waltz.attest.tree_files import TreeFiles
from waltz.types import TransactionId

pytestmark = pytest.mark.long

SIZE = 66_000
KEY = known_key("waltz/test", KeyKind.LOG)
WITNESS = known_key("witness.example/w", KeyKind.WITNESS)
KEYS = (str(KEY.public_key), str(WITNESS.public_key))


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a tree of three levels of tiles, and proofs of some transactions of it."""
    root = tmp_path_factory.mktemp("tree")
    memory = MemoryFiles()
    files = TreeFiles(memory, PARTITION)
    records = MemoryBlocks([block_of(number, 1) for number in range(SIZE)])
    attester = Attester(files, CLUSTER, PARTITION, KEY)

    def cosign(note: Note, tree: TreeHashes) -> list[Signature]:
        return [WITNESS.sign(note.text, 1_700_000_000)]

    for end in (1, 300, SIZE):
        attester.extend(records, TransactionId(end))
        attester.cosign(cosign)
    for path, content in memory.content.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    for number in {0, SIZE - 1, *Random(7).sample(range(SIZE), 20)}:
        proof = prove(files, records, CLUSTER, PARTITION, TransactionId(number))
        (root / f"{number}.tlog-proof").write_text(str(proof))
    return root


def test_another_implementation_accepts_tiles_checkpoint_and_proofs(
    judge: Path, tree: Path
) -> None:
    proofs = sorted(tree.glob("*.tlog-proof"))
    assert len(proofs) >= 20
    assert judged(judge, tree / f"attest/{PARTITION}", *KEYS, *proofs) == str(SIZE)


@pytest.mark.parametrize("name", ["checkpoint", "tile/0/100", "tile/1/000", "tile/0/257.p/208"])
def test_the_other_implementation_refuses_what_was_changed(
    judge: Path, tree: Path, name: str
) -> None:
    path = tree / f"attest/{PARTITION}" / name
    content = path.read_bytes()
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)
    try:
        assert judged(judge, tree / f"attest/{PARTITION}", *KEYS).startswith("wrong:")
    finally:
        path.write_bytes(content)


def test_the_other_implementation_refuses_the_proof_of_another_record(
    judge: Path, tree: Path
) -> None:
    proof = next(tree.glob("*.tlog-proof"))
    other = tree / "other"
    other.write_text(proof.read_text().replace("\nindex ", "\nindex 1"))
    assert judged(judge, tree / f"attest/{PARTITION}", *KEYS, other).startswith("wrong:")
