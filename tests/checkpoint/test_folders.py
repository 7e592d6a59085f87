"""Which checkpoints count: only what was committed whole, at whatever moment the writer stopped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colosseum.checkpoint import folders
from colosseum.checkpoint.metadata import CheckpointMetadata, FileSum, Layout, ModelShape
from colosseum.errors import RefusedInput
from colosseum.rundir import CHECKPOINT_MARK, LATEST_FILE, checkpoint_folder, saved_steps

CONTENT = {"__0_0.distcp": b"abc", "common.pt": b"", ".metadata": b"\x80\x04"}
SHAPE = ModelShape(
    num_layers=2,
    hidden_size=64,
    ffn_hidden_size=128,
    num_attention_heads=8,
    num_query_groups=4,
    vocab_size=512,
    tied_embeddings=False,
    seq_length=64,
)


def metadata(step: int, files: dict[str, FileSum]) -> CheckpointMetadata:
    return CheckpointMetadata(
        schema="colosseum.checkpoint/2",
        step=step,
        consumed_samples=8 * step,
        consumed_tokens=512 * step,
        layout=Layout(tp=1, pp=1, vpp=1, cp=1, dp=1),
        model=SHAPE,
        dtype="fp32",
        fp8="none",
        sharded_optimizer=False,
        tokens_by_source={"a": 512 * step},
        sample_order="0",
        recipe_hash="0",
        run_id="run",
        versions={},
        save_time_s=0.1,
        files=files,
    )


def save(checkpoints: Path, step: int, attempt: int = 0) -> Path:
    """A whole save: prepared, written, committed."""
    folder = folders.prepare_step(checkpoints, step, attempt)
    for name, data in CONTENT.items():
        (folder / name).write_bytes(data)
    folders.commit(checkpoints, step, metadata(step, folders.checksums(folder, CONTENT)))
    return folder


def test_checksums_are_xxh3_64(tmp_path: Path) -> None:
    for name, data in CONTENT.items():
        (tmp_path / name).write_bytes(data)
    found = folders.checksums(tmp_path, ["__0_0.distcp", "common.pt"])
    # XXH3-64 of "abc" and of nothing, seed 0: what `xxhsum -H3` prints.
    assert found["__0_0.distcp"] == FileSum(bytes=3, xxh3="78af5f94892f3950")
    assert found["common.pt"] == FileSum(bytes=0, xxh3="2d06800538d394c2")


def test_a_committed_checkpoint_reads_back(tmp_path: Path) -> None:
    folder = save(tmp_path, 100)
    assert folder.name == "iter_0000100"
    assert folders.read_metadata(folder) == metadata(100, folders.checksums(folder, CONTENT))
    assert folders.newest_committed(tmp_path) == 100
    assert (tmp_path / LATEST_FILE).read_text() == "100\n"


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    assert folders.newest_committed(tmp_path / "nowhere") is None
    assert folders.newest_committed(tmp_path) is None


def _cut(folder: Path) -> None:
    (folder / "__0_0.distcp").write_bytes(b"ab")


def _cut_mark(folder: Path) -> None:
    text = (folder / CHECKPOINT_MARK).read_bytes()
    (folder / CHECKPOINT_MARK).write_bytes(text[: len(text) // 2])


def _other_schema(folder: Path) -> None:
    text = (folder / CHECKPOINT_MARK).read_text()
    (folder / CHECKPOINT_MARK).write_text(text.replace("colosseum.checkpoint/2", "colosseum.checkpoint/9"))


def _pipe(folder: Path) -> None:
    (folder / CHECKPOINT_MARK).unlink()
    os.mkfifo(folder / CHECKPOINT_MARK)


def _endless(folder: Path) -> None:
    with (folder / CHECKPOINT_MARK).open("r+b") as file:
        file.truncate(1 << 40)


def _file_outside(folder: Path) -> None:
    """What a stranger may write: `checkpoint copy` would write such a file beside its target."""
    (folder.parent / "common.pt").touch()
    text = (folder / CHECKPOINT_MARK).read_text()
    (folder / CHECKPOINT_MARK).write_text(text.replace('"common.pt"', '"../common.pt"'))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / CHECKPOINT_MARK).unlink(), "is not a complete checkpoint: it has no colosseum.json"),
        (lambda folder: (folder / "common.pt").unlink(), "is damaged: common.pt is missing"),
        (_cut, "is damaged: __0_0.distcp has 2 bytes, not 3"),
        (_cut_mark, "colosseum.json cannot be read, or is not a valid checkpoint"),
        (_other_schema, "colosseum.json cannot be read, or is not a valid checkpoint"),
        (_pipe, "colosseum.json cannot be read, or is not a valid checkpoint"),
        (_endless, "colosseum.json cannot be read, or is not a valid checkpoint"),
        (_file_outside, "iter_0000008 refers to '../common.pt', which is not a file in its folder"),
    ],
)
def test_a_damaged_checkpoint_does_not_count(tmp_path: Path, damage: Callable[[Path], Any], sentence: str) -> None:
    save(tmp_path, 4)
    folder = save(tmp_path, 8)
    damage(folder)
    assert folders.newest_committed(tmp_path) == 4
    with pytest.raises(RefusedInput) as refused:
        folders.read_metadata(folder)
    assert sentence in str(refused.value)


def test_an_unfinished_folder_is_renamed_and_kept_each_time(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        folder = folders.prepare_step(tmp_path, 8, attempt=3)
        assert list(folder.iterdir()) == []
        (folder / "__0_0.distcp").write_bytes(content)
    folders.prepare_step(tmp_path, 8, attempt=3)
    aside = sorted(tmp_path.glob("iter_0000008.unfinished-3*"))
    assert sorted((folder / "__0_0.distcp").read_bytes() for folder in aside) == [b"first", b"second"]
    assert folders.newest_committed(tmp_path) is None
    assert saved_steps(tmp_path) == []


class Stopped(Exception):
    """Stands for the process's end at that point."""


@pytest.mark.parametrize("calls", range(12))
def test_a_commit_that_stops_anywhere_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Every fsync and rename of a commit is once the last thing that is not done."""
    save(tmp_path, 4)
    left = calls
    fsync, rename = os.fsync, Path.rename

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Stopped
            left -= 1
            return function(*words)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counted(fsync))
        patch.setattr(Path, "rename", counted(rename))
        try:
            save(tmp_path, 8)
            ended = True
        except Stopped:
            ended = False
    # 3 files, colosseum.json + its name + its folder, checkpoints/, the tracker likewise: 10 calls.
    assert ended is (calls >= 10)
    newest = folders.newest_committed(tmp_path)
    assert newest == (8 if calls >= 5 else 4), "it counts from the rename of colosseum.json on, no earlier"
    assert int((tmp_path / LATEST_FILE).read_text()) <= newest, "the tracker names no checkpoint that does not count"
    save(tmp_path, 8, attempt=1)
    assert folders.newest_committed(tmp_path) == 8


@settings(deadline=None, max_examples=15)  # it waits for the disk
@given(
    steps=st.sets(st.integers(1, 8), min_size=1),
    keep_last=st.none() | st.integers(1, 4),
    keep_every=st.none() | st.integers(1, 4),
    broken=st.integers(1, 8),
)
def test_prune_keeps_what_it_says(steps: set[int], keep_last: int | None, keep_every: int | None, broken: int) -> None:
    with TemporaryDirectory() as folder:
        checkpoints = Path(folder)
        for step in steps:
            save(checkpoints, step)
        if broken in steps:
            (checkpoint_folder(checkpoints, broken) / "common.pt").unlink()
        good = sorted(steps - {broken})
        newest = folders.newest_committed(checkpoints)
        gone = folders.prune(checkpoints, keep_last, keep_every)
        left = {step for step in steps if checkpoint_folder(checkpoints, step).exists()}
        assert left == steps - set(gone)
        assert folders.newest_committed(checkpoints) == newest
        kept = set(good) if keep_last is None else set(good[-keep_last:])
        kept |= {step for step in good if keep_every and step % keep_every == 0}
        assert left - {broken} == kept
        assert (broken in left) == (broken in steps), "what is not whole is not ours to delete"


def test_a_folder_of_another_number_is_no_checkpoint_and_no_reason_to_delete_others(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        save(tmp_path, step)
    copy = checkpoint_folder(tmp_path, 99)
    shutil.copytree(checkpoint_folder(tmp_path, 4), copy)
    with pytest.raises(RefusedInput, match=r"not a checkpoint of step 99: its colosseum\.json says step 4"):
        folders.read_metadata(copy)
    assert folders.newest_committed(tmp_path) == 12
    assert folders.prune(tmp_path, 2, None) == [4]
    assert saved_steps(tmp_path) == [8, 12, 99]


def test_prune_that_stops_half_way_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (4, 8):
        save(tmp_path, step)

    def stop(path: Path) -> None:
        raise Stopped

    monkeypatch.setattr(shutil, "rmtree", stop)
    with pytest.raises(Stopped):
        folders.prune(tmp_path, 1, None)
    assert saved_steps(tmp_path) == [8]
    assert (checkpoint_folder(tmp_path, 4) / "common.pt").exists()
