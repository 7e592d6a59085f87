"""What a checkpoint is, from its metadata."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from colosseum.checkpoint.hf.facts import read_facts
from colosseum.checkpoint.inspect import damaged, find, inspect, read_json
from colosseum.checkpoint.torchdist import read_index
from colosseum.errors import RefusedInput
from colosseum.rundir import CHECKPOINT_MARK, RunDir
from tests.checkpoint import made
from tests.checkpoint.payload import Touch

COLOSSEUM = Path(sys.executable).parent / "colosseum"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    made.write(root, layers=3, hidden=32)
    return root


@pytest.fixture
def ours(run: Path, tmp_path: Path) -> Path:
    """A copy that may be spoiled."""
    shutil.copytree(run / "checkpoints", tmp_path / "copy" / "checkpoints")
    return tmp_path / "copy" / "checkpoints" / "iter_0000004"


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    at, header = 0, {}
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


def test_ours_is_told_without_torch_by_the_command(run: Path) -> None:
    code = (
        "import sys; from colosseum.cli.main import main; code = main(sys.argv[1:]);"
        "sys.exit(code or ('torch' in sys.modules and 9))"
    )
    words = [sys.executable, "-c", code, "checkpoint", "inspect", str(run), "--json"]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["kind"], found["layers"], found["step"], found["dtype"]) == ("colosseum", 3, 4, "fp32")
    assert found["layout"]["tp"] == 2
    assert found["tokens_by_source"] == {"a": 2048}


def test_tensors_have_shapes_and_dtypes(ours: Path) -> None:
    found = inspect(ours, tensors=True).tensors
    assert found["decoder.layers.mlp.linear_fc1.weight"] == ((3, 64, 32), "float32")


def test_one_flipped_byte_is_found_and_named(ours: Path) -> None:
    assert damaged(ours) == []
    file = ours / "__1_0.distcp"
    content = bytearray(file.read_bytes())
    content[1000] ^= 4
    file.write_bytes(content)
    assert damaged(ours) == ["__1_0.distcp"]
    words = [COLOSSEUM, "checkpoint", "inspect", ours, "--verify"]
    assert subprocess.run(words, capture_output=True).returncode == 4


def test_without_our_description_it_is_megatrons_or_unfinished(ours: Path) -> None:
    (ours / CHECKPOINT_MARK).unlink()
    found = inspect(ours)
    assert found.kind == "megatron-lm"
    assert (found.facts["layers"], found.facts["dtype"], found.facts["step"]) == (3, "float32", 4)
    bundle = ours.parent.parent / "bundle"
    bundle.mkdir()
    (bundle / "manifest.json").write_text("{}")
    assert inspect(ours).kind == "unfinished", "a run of ours writes colosseum.json at the end"
    (bundle / "manifest.json").unlink()
    (ours / ".metadata").unlink()
    assert inspect(ours).kind == "unfinished"


def test_nemo_2_keeps_weights_in_a_folder_of_their_own(ours: Path, tmp_path: Path) -> None:
    (ours / CHECKPOINT_MARK).unlink()
    (tmp_path / "nemo2").mkdir()
    ours.rename(tmp_path / "nemo2" / "weights")
    assert inspect(tmp_path / "nemo2").kind == "nemo2"


def test_nothing_of_a_strangers_pickle_runs(ours: Path, tmp_path: Path) -> None:
    (ours / CHECKPOINT_MARK).unlink()
    mark = tmp_path / "ran"
    (ours / ".metadata").write_bytes(pickle.dumps(Touch(mark)))
    with pytest.raises(RefusedInput, match="not data"):
        inspect(ours)
    assert not mark.exists()


@pytest.mark.parametrize("name", [".metadata", "model.json", "config.json"])
def test_a_pipe_or_an_endless_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """Of a stranger's folder: nobody waits for a writer, and no memory is filled."""
    read = {".metadata": read_index, "model.json": read_facts, "config.json": lambda folder: read_json(folder / name)}
    os.mkfifo(tmp_path / name)
    with pytest.raises(RefusedInput, match=name):
        read[name](tmp_path)
    (tmp_path / name).unlink()
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RefusedInput, match=name):
        read[name](tmp_path)


def test_hugging_face_in_shards_and_with_one_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    names = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"]
    for number, name in enumerate(names):
        safetensors(tmp_path / f"model-{number}.safetensors", {name: ("BF16", [4, 8], 64)})
    weight_map = {name: f"model-{number}.safetensors" for number, name in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    found = inspect(tmp_path, tensors=True)
    assert (found.kind, found.facts["layers"], found.facts["dtype"]) == ("huggingface", 2, "BF16")
    assert found.facts["parameters"] == 3 * 32
    assert found.tensors[names[1]] == ((4, 8), "BF16")
    (tmp_path / "model-2.safetensors").unlink()
    gone = inspect(tmp_path)
    assert gone.kind == "unfinished"
    assert gone.facts["missing_files"] == ["model-2.safetensors"]


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, struct.pack("<Q", 20) + b'{"a": {"dtype": 1}} ', bytes(64)])
def test_what_is_cut_or_no_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(RefusedInput, match="not a safetensors file"):
        inspect(tmp_path / "a.safetensors")


def test_a_nemo_archive_is_told_by_its_names(tmp_path: Path) -> None:
    (tmp_path / "model_config.yaml").write_text("num_layers: 96\n")
    (tmp_path / "part").write_bytes(b"x")
    with tarfile.open(tmp_path / "m.nemo", "w") as archive:
        archive.add(tmp_path / "model_config.yaml", "./model_config.yaml")
        archive.add(tmp_path / "part", "./model_weights/a/.zarray")
    found = inspect(tmp_path / "m.nemo")
    assert (found.kind, found.facts["weights"]) == ("nemo", "zarr")


def test_anything_else_is_unknown_and_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert inspect(tmp_path).kind == "unknown"
    assert inspect(tmp_path / "notes.txt").kind == "unknown"
    with pytest.raises(RefusedInput, match="no such file"):
        inspect(tmp_path / "gone")


def test_a_run_means_its_newest_finished_checkpoint(run: Path) -> None:
    folder = run / "checkpoints" / "iter_0000004"
    assert find(str(run), RunDir) == folder
    assert find(f"{run}@4", RunDir) == folder
    assert find("name", lambda name: RunDir(run)) == folder
    with pytest.raises(RefusedInput, match="no such file"):
        inspect(find(f"{run}@5", RunDir))
