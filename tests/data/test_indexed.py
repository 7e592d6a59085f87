"""The indexed dataset against megatron-core's own writer and reader, and its behaviour when things go wrong."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colosseum.data.indexed import bin_path, idx_path, read_dataset, token_dtype, write_dataset
from colosseum.errors import EnvironmentFault, RefusedInput

Documents = list[list[int]]


def _write(prefix: Path, documents: Documents, vocab: int, force: bool = False) -> None:
    with write_dataset(prefix, vocab, force=force) as writer:
        for ids in documents:
            writer.add_document(ids)


def _megatron(prefix: Path, documents: Documents, vocab: int) -> None:
    torch = pytest.importorskip("torch")
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(bin_path(prefix)), dtype=DType.optimal_dtype(vocab))
    for ids in documents:
        builder.add_document(torch.tensor(ids, dtype=torch.int64), [len(ids)])
    builder.finalize(str(idx_path(prefix)))


@pytest.mark.parametrize("vocab", [300, 65499, 65500, 256000])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=st.lists(st.integers(1, 60), max_size=12), seed=st.integers(0, 2**31))
def test_same_bytes_as_megatron(tmp_path: Path, vocab: int, shapes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    documents = [rng.integers(0, vocab, n).tolist() for n in shapes]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    _write(ours, documents, vocab, force=True)
    _megatron(theirs, documents, vocab)
    assert bin_path(ours).read_bytes() == bin_path(theirs).read_bytes()
    assert idx_path(ours).read_bytes() == idx_path(theirs).read_bytes()


def test_megatron_reads_what_we_write(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    documents = [[5, 6, 7], [9], [1, 2]]
    _write(tmp_path / "d", documents, 300)
    assert [d.tolist() for d in IndexedDataset(str(tmp_path / "d"))] == documents


def test_read_back(tmp_path: Path) -> None:
    _write(tmp_path / "d", [[5, 6, 7], [70000]], 80000)
    dataset = read_dataset(tmp_path / "d")
    assert dataset.ids.tolist() == [5, 6, 7, 70000]
    assert dataset.lengths.tolist() == [3, 1]
    assert dataset.tokens == 4


def test_type_turns_at_megatrons_limit() -> None:
    assert (token_dtype(65499), token_dtype(65500)) == (np.dtype("uint16"), np.dtype("int32"))


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), write_dataset(tmp_path / "d", 300) as writer:
        writer.add_document([1, 2, 3])
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_failed_replacement_keeps_the_old(tmp_path: Path) -> None:
    _write(tmp_path / "d", [[1, 2]], 300)
    before = bin_path(tmp_path / "d").read_bytes(), idx_path(tmp_path / "d").read_bytes()
    with pytest.raises(OverflowError), write_dataset(tmp_path / "d", 300, force=True) as writer:
        writer.add_document([70000])
    assert before == (bin_path(tmp_path / "d").read_bytes(), idx_path(tmp_path / "d").read_bytes())


def test_never_overwrites_unasked(tmp_path: Path) -> None:
    _write(tmp_path / "d", [[1]], 300)
    with pytest.raises(RefusedInput, match="--force"):
        _write(tmp_path / "d", [[2]], 300)
    _write(tmp_path / "d", [[2]], 300, force=True)
    assert read_dataset(tmp_path / "d").ids.tolist() == [2]


def test_of_two_writers_one_wins(tmp_path: Path) -> None:
    with pytest.raises(RefusedInput), write_dataset(tmp_path / "d", 300) as late:
        late.add_document([1, 1])
        _write(tmp_path / "d", [[2]], 300)
    assert read_dataset(tmp_path / "d").ids.tolist() == [2]


def test_failing_disk_is_the_machines_fault(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(EnvironmentFault, match="too large"), write_dataset(tmp_path / "d", 300) as writer:
            for _ in range(100):
                writer.add_document([1] * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("suffix", "keep", "message"),
    [
        (".bin", -1, "its index says"),
        (".idx", -3, "truncated"),
        (".idx", 10, "not a Megatron index"),
        (".bin", None, "data tokenize"),
        (".idx", None, "data tokenize"),
    ],
)
def test_damage_is_named(tmp_path: Path, suffix: str, keep: int | None, message: str) -> None:
    _write(tmp_path / "d", [[1, 2, 3], [4]], 300)
    path = tmp_path / f"d{suffix}"
    if keep is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RefusedInput, match=message):
        read_dataset(tmp_path / "d")
