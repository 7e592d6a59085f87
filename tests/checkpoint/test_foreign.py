"""Checkpoints of Megatron-LM and NeMo 1.x: out and in again, and what of them is refused.

Folders that megatron-core's own save writes are read in tests/checkpoint/hf/test_hf.py.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from colosseum.checkpoint.folders import read_metadata
from colosseum.checkpoint.hf.facts import read_facts
from colosseum.checkpoint.hf.importing import import_hf
from colosseum.checkpoint.megatron import export_megatron, import_megatron
from colosseum.checkpoint.metadata import ModelShape
from colosseum.checkpoint.nemo import import_nemo
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.cli.main import main
from colosseum.engines.nemo1.importer import model_values
from colosseum.errors import RefusedInput
from tests.checkpoint.hf import models
from tests.checkpoint.payload import Touch

FAMILIES = ("llama3", "llama2", "qwen2", "nemotron")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``NAME/ckpt`` of ours and ``NAME/lm``, as Megatron-LM reads it."""
    root = tmp_path_factory.mktemp("foreign")
    for name in FAMILIES:
        import_hf(models.write(root / name / "in", name), root / name / "ckpt")
        export_megatron(root / name / "ckpt", root / name / "lm")
    return root


@pytest.mark.parametrize("name", FAMILIES)
def test_out_to_megatron_and_in_again(out: Path, tmp_path: Path, name: str) -> None:
    import_megatron(out / name / "lm", tmp_path / "again")
    before, after = (Tensors(read_index(folder)) for folder in (out / name / "ckpt", tmp_path / "again"))
    assert set(before.names()) == set(after.names())
    for key, layer in before.names():
        assert torch.equal(before.get(key, layer), after.get(key, layer)), (key, layer)
    ours, theirs = read_facts(out / name / "ckpt"), read_facts(tmp_path / "again")
    assert ours is not None and theirs is not None
    assert ModelShape.of_model(ours.model, 1) == ModelShape.of_model(theirs.model, 1)
    assert read_metadata(tmp_path / "again").dtype == "fp32"


def test_megatron_cannot_do_every_model(out: Path, tmp_path: Path) -> None:
    import_hf(models.write(tmp_path / "in", "mistral"), tmp_path / "ckpt")
    with pytest.raises(RefusedInput, match="llama3 by 8 only"):
        export_megatron(tmp_path / "ckpt", tmp_path / "lm")
    assert main(["checkpoint", "export", "megatron", str(out / "llama2" / "ckpt"), str(out / "llama2" / "lm")]) == 2
    assert not (tmp_path / "lm").exists()


def changed(source: Path, target: Path, **more: Any) -> Path:
    """Megatron-LM's folder with other arguments."""
    shutil.copytree(source, target)
    common = torch.load(target / "release" / "common.pt", weights_only=False)
    common["args"] = argparse.Namespace(**{**vars(common["args"]), **more})
    torch.save(common, target / "release" / "common.pt")
    return target


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"num_experts": 8}, "num_experts"),
        ({"multi_latent_attention": True}, "multi_latent_attention"),
        ({"rotary_interleaved": True}, "rotary_interleaved"),
        ({"position_embedding_type": "yarn"}, "position_embedding_type"),
        ({"num_layers": 4}, "of layer 3: is missing"),
        ({"num_layers": 2}, "is no tensor of the model"),
        ({"hidden_size": 128}, "the model makes it"),
        ({"add_qkv_bias": True}, "linear_qkv.bias"),
        ({"num_layers": "many"}, "num_layers"),
    ],
)
def test_what_is_not_the_model_of_its_arguments_is_refused(
    out: Path, tmp_path: Path, more: dict[str, Any], text: str
) -> None:
    folder = changed(out / "llama2" / "lm", tmp_path / "lm", **more)
    with pytest.raises(RefusedInput) as refused:
        import_megatron(folder, tmp_path / "again")
    assert text.replace(": is missing", "") in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["lm"]


def test_nothing_of_its_arguments_is_run(out: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = changed(out / "llama2" / "lm", tmp_path / "lm", spec=Touch(mark))
    with pytest.raises(RefusedInput, match="no code was run"):
        import_megatron(folder, tmp_path / "again")
    assert not mark.exists()
    (folder / "release" / "common.pt").unlink()
    with pytest.raises(RefusedInput, match="holds no arguments"):
        import_megatron(folder, tmp_path / "again")


CONFIG = {
    **{"num_layers": 3, "hidden_size": 64, "ffn_hidden_size": 112, "num_attention_heads": 4, "num_query_groups": 4},
    **{"kv_channels": 8, "encoder_seq_length": 1024, "max_position_embeddings": 1024, "activation": "fast-swiglu"},
    **{"normalization": "rmsnorm", "layernorm_epsilon": 1e-6, "bias": False, "rotary_percentage": 1.0},
    **{"share_embeddings_and_output_weights": True, "position_embedding_type": "rope", "rotary_base": 10000},
    **{"hidden_dropout": 0.0, "attention_dropout": 0.0, "precision": "bf16", "target": "nemo.…MegatronGPTModel"},
}
"""model_config.yaml of the tiny Llama 2."""


def nemo_folder(out: Path, target: Path, config: dict[str, Any] = CONFIG) -> Path:
    shutil.copytree(out / "llama2" / "lm" / "release", target / "model_weights")
    (target / "model_config.yaml").write_text(yaml.safe_dump(config))
    return target


def archived(folder: Path, file: Path) -> Path:
    with tarfile.open(file, "w:") as archive:
        archive.add(folder, ".")
    return file


def test_a_nemo_archive_is_read_where_it_lies(out: Path, tmp_path: Path) -> None:
    file = archived(nemo_folder(out, tmp_path / "folder"), tmp_path / "model.nemo")
    assert main(["checkpoint", "import", "nemo", str(file), str(tmp_path / "again"), "--json"]) == 0
    before, after = (Tensors(read_index(folder)) for folder in (out / "llama2" / "ckpt", tmp_path / "again"))
    for key, layer in before.names():
        assert torch.equal(before.get(key, layer), after.get(key, layer)), (key, layer)
    found = read_facts(tmp_path / "again")
    assert found is not None and (found.model.vocab_size, found.name) == (512, "model")


def test_nemo_files_that_are_none(out: Path, tmp_path: Path) -> None:
    folder = nemo_folder(out, tmp_path / "folder")
    file = archived(folder, tmp_path / "model.nemo")
    data = file.read_bytes()
    (tmp_path / "packed.nemo").write_bytes(gzip.compress(data))
    (tmp_path / "cut.nemo").write_bytes(data[: len(data) // 2])
    (tmp_path / "none.nemo").write_bytes(b"x" * 2000)
    (folder / "model_weights" / ".metadata").rename(folder / "model_weights" / "metadata")
    cases = {"packed.nemo": "compressed", "cut.nemo": "cut|is no archive", "none.nemo": "no archive"}
    cases |= {"folder": "another form than torch_dist", "nothing": "no archive"}
    for name, text in cases.items():
        with pytest.raises(RefusedInput, match=text):
            import_nemo(tmp_path / name, tmp_path / "again", model_values)
    (folder / "model_weights" / "a" / "b").mkdir(parents=True)
    (folder / "model_weights" / "a" / "b" / ".zarray").write_text("{}")
    with pytest.raises(RefusedInput, match="holds zarr"):
        import_nemo(folder, tmp_path / "again", model_values)
    (folder / "model_config.yaml").write_text("!!python/object/apply:os.system [x]")
    with pytest.raises(RefusedInput):
        import_nemo(folder, tmp_path / "again", model_values)
    assert not (tmp_path / "again").exists()
    words = ["checkpoint", "import", "nemo", str(file), str(tmp_path / "again"), "--dtype", "bf16"]
    assert main(words) == 2
