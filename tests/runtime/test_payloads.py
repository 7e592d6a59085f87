"""A stranger's files: whichever of them holds a program, it does not run, and the run says so and ends."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from colosseum.checkpoint.folders import checksums
from colosseum.recipe.schema import Recipe
from colosseum.rundir import CHECKPOINT_MARK, checkpoint_folder
from tests.checkpoint.payload import Touch
from tests.runtime import tiny
from tests.runtime.worlds import fail_all, losses, train_all

SIZES = {"num_layers": 2}
STEP = 3


def _write_sums(folder: Path) -> None:
    """Sums as a stranger writes them: they fit what he wrote."""
    document = json.loads((folder / CHECKPOINT_MARK).read_text())
    sums = checksums(folder, document["files"])
    document["files"] = {name: found.model_dump() for name, found in sums.items()}
    (folder / CHECKPOINT_MARK).write_text(json.dumps(document))


def _in_metadata(folder: Path, payload: Any) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(payload))


def _in_common(folder: Path, payload: Any) -> None:
    import torch

    torch.save({"x": payload}, folder / "common.pt")


def _in_an_object(key: str) -> Callable[[Path, Any], None]:
    """Appends the object to a *.distcp and points .metadata at it."""

    def put(folder: Path, payload: Any) -> None:
        import torch

        metadata = pickle.loads((folder / ".metadata").read_bytes())
        content = io.BytesIO()
        torch.save([payload], content)
        for index, stored in metadata.storage_data.items():
            if key in index.fqn:
                file = folder / stored.relative_path
                stored.offset, stored.length = file.stat().st_size, len(content.getvalue())
                file.write_bytes(file.read_bytes() + content.getvalue())
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))

    return put


def _as_scaling(folder: Path, payload: Any) -> None:
    """As Transformer Engine keeps it: a pickle inside a tensor, which the object's own reader cannot see."""
    import torch

    state = torch.frombuffer(bytearray(pickle.dumps(payload)), dtype=torch.uint8)
    _in_an_object("linear_fc1._extra_state")(folder, state)


def _outside(folder: Path, _: Any) -> None:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    next(iter(metadata.storage_data.values())).relative_path = "../../elsewhere"
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


CHECKPOINT_FILES: dict[str, tuple[Callable[[Path, Any], None], str]] = {
    "metadata": (_in_metadata, ".metadata refers to posix.mkdir, which is not data"),
    "common": (_in_common, "common.pt refers to posix.mkdir, which is not data"),
    "rng": (_in_an_object("rng_state"), "object rng_state/shard_0.0_1.1 refers to posix.mkdir"),
    "scaling": (_as_scaling, "linear_fc1._extra_state refers to posix.mkdir"),
    "outside": (_outside, "refers to '../../elsewhere', which is not a file in its folder"),
}


def caching(data: Path, cache: Path) -> Recipe:
    full = tiny.recipe(data, model=SIZES, train={"steps": 4}, checkpoint={"every_steps": STEP}).as_data()
    full["data"]["cache_dir"] = str(cache)
    return Recipe.from_data(full)


def test_nothing_that_is_read_runs(data: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    base = caching(data, tmp_path / "cache")
    train_all({"base": base}, tmp_path)
    runs: dict[str, Recipe] = {}
    for name, (put, _) in CHECKPOINT_FILES.items():
        (tmp_path / "given" / name).mkdir(parents=True)
        folder = checkpoint_folder(tmp_path / "given" / name, STEP)
        shutil.copytree(checkpoint_folder(tmp_path / "base" / "checkpoints", STEP), folder)
        put(folder, Touch(ran))
        _write_sums(folder)
        full = base.as_data()
        full["checkpoint"]["from"] = str(folder)
        runs[name] = Recipe.from_data(full)
    shutil.copytree(tmp_path / "cache", tmp_path / "hostile")
    for file in (tmp_path / "hostile").glob("*GPTDataset*.npy"):
        np.save(file, np.array([Touch(ran)] * 100, dtype=object), allow_pickle=True)
    runs["index"] = caching(data, tmp_path / "hostile")
    (tmp_path / "tokenizer.json").write_bytes(pickle.dumps(Touch(ran)))
    sections = {"kind": "tokenizer_json", "path": str(tmp_path / "tokenizer.json"), "eod": "<|endoftext|>"}
    runs["tokenizer"] = tiny.recipe(data, model=SIZES, tokenizer=sections)
    ends = fail_all(runs, tmp_path)
    assert not ran.exists()
    # An index that holds no numbers is made anew, from the data.
    assert ends.pop("index") is None
    assert losses(tmp_path / "index") == losses(tmp_path / "base")
    expected = {name: ("config_error", sentence) for name, (_, sentence) in CHECKPOINT_FILES.items()}
    expected["tokenizer"] = ("config_error", "is not a tokenizer.json")
    for name, (kind, sentence) in expected.items():
        end = ends[name]
        assert end is not None, name
        assert (end.kind, end.retry) == (kind, False), end
        assert sentence in end.reason
        assert "\n" not in end.reason
