"""Hugging Face folders in and out: the same bits, transformers' logits, and nothing half done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from colosseum.checkpoint.folders import read_metadata
from colosseum.checkpoint.forward import logits
from colosseum.checkpoint.hf import importing
from colosseum.checkpoint.hf.config import read_config
from colosseum.checkpoint.hf.exporting import export_hf
from colosseum.checkpoint.hf.facts import read_facts
from colosseum.checkpoint.hf.importing import import_hf
from colosseum.checkpoint.hf.mapping import parts
from colosseum.checkpoint.hf.recipe import sft_recipe
from colosseum.checkpoint.hf.source import read_folder
from colosseum.checkpoint.hf.text_files import template
from colosseum.checkpoint.megatron import export_megatron
from colosseum.checkpoint.metadata import ModelShape
from colosseum.checkpoint.torchdist import Tensors, read_index
from colosseum.cli.main import main
from colosseum.data.align.render import render
from colosseum.data.align.rows import Conversation, Turn
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.planning.flops import Shape
from colosseum.recipe.load import load
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import FromPath
from colosseum.recipe.tasks import ChatTokens
from tests.checkpoint.hf import models

HERE = Path(__file__).parent
FP32 = 1e-5
FAMILIES = tuple(models.CONFIGS)


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``NAME/in``, a Hugging Face folder, and ``NAME/ckpt``, a checkpoint of several files."""
    root = tmp_path_factory.mktemp("hf")
    for number, name in enumerate(FAMILIES):
        models.write(root / name / "in", name, shards=1 + 2 * (number % 2))
        import_hf(root / name / "in", root / name / "ckpt", file_bytes=100_000)
    return root


def weights(folder: Path) -> dict[str, Any]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


# --- the same bits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_out_comes_what_went_in(imported: Path, tmp_path: Path, name: str) -> None:
    checkpoint, out = imported / name / "ckpt", tmp_path / "out"
    assert len(list(checkpoint.glob("*.distcp"))) > 3
    export_hf(checkpoint, out, shard_bytes=150_000)
    assert len(list(out.glob("*.safetensors"))) > 3
    before, after = models.tensors(name), weights(out)
    assert after.keys() == before.keys()
    for key, tensor in before.items():
        assert np.array_equal(after[key], tensor), key
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == before.keys()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in before.values())
    again = read_folder(out)
    assert (again.family, again.model) == (read_folder(imported / name / "in").family, again.model)
    for key in ("vocab_size", "hidden_size", "num_key_value_heads", "tie_word_embeddings", "hidden_act"):
        assert again.config[key] == models.CONFIGS[name][key], key
    assert json.loads((out / "generation_config.json").read_text()) == {"bos_token_id": 0, "eos_token_id": [1]}
    assert (out / "tokenizer.json").read_bytes() == (imported / name / "in" / "tokenizer.json").read_bytes()


def test_dtype_is_chosen_and_recorded(imported: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file as load_torch

    import_hf(imported / "mistral" / "in", tmp_path / "ckpt", dtype="bf16")
    assert read_metadata(tmp_path / "ckpt").dtype == "bf16"
    export_hf(tmp_path / "ckpt", tmp_path / "out")
    found = load_torch(tmp_path / "out" / "model.safetensors")
    for name, tensor in models.tensors("mistral").items():
        assert torch.equal(found[name], torch.from_numpy(tensor).bfloat16()), name
    # BF16 in, BF16 through and out: by itself.
    import_hf(tmp_path / "out", tmp_path / "second")
    assert read_metadata(tmp_path / "second").dtype == "bf16"


# --- transformers' figures ---------------------------------------------------------------------------------------


def of(checkpoint: Path, tp: int) -> Recipe:
    """A recipe that begins from an imported checkpoint."""
    full = load("debug/cpt-4k-bf16", ["cluster=local", "tokenizer=token-ids", "batch.seq_length=64"]).recipe.as_data()
    found = read_facts(checkpoint)
    assert found is not None
    full["model"] = found.model.model_dump(mode="json")
    full["overlap"].update(p2p=False, batch_p2p=True, grad_reduce=False, param_gather=False, tp_comm=False)
    full["parallelism"].update(sequence_parallel=False, tp=tp)
    full["optimizer"].update(distributed=False, warmup_steps=2)
    full["precision"].update(grad_reduce_dtype="fp32")
    full["resources"].update(gpus=tp)
    full["checkpoint"].update({"from": str(checkpoint), "load": ["weights"]})
    return Recipe.from_data(full)


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_without_an_engine_are_those_of_transformers(imported: Path, name: str) -> None:
    found = read_facts(imported / name / "ckpt")
    assert found is not None
    ours = logits(Tensors(read_index(imported / name / "ckpt")), found.model, models.TOKENS)[list(models.SHOWN)]
    expected = np.load(HERE / "figures" / f"{name}.npz")["logits"]
    assert np.abs(ours.numpy() - expected).max() <= FP32


@pytest.mark.parametrize("tp", [1, 2])
def test_logits_and_greedy_tokens_are_those_of_transformers(imported: Path, tmp_path: Path, tp: int) -> None:
    jobs = tmp_path / "jobs.json"
    shared = {"tokens": models.TOKENS, "shown": models.SHOWN, "new": models.NEW}
    entries = [
        {"recipe": of(imported / n / "ckpt", tp).as_data(), "out": str(tmp_path / f"{n}.npz"), **shared}
        for n in FAMILIES
    ]
    exchanged = prepare_exchange(imported, tmp_path, entries) if tp == 2 else None
    jobs.write_text(json.dumps(entries))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(tp), "LOCAL_WORLD_SIZE": str(tp)}
    command = [sys.executable, str(HERE / "worker.py"), str(jobs)]
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}, stderr=subprocess.PIPE, text=True)
        for r in range(tp)
    ]
    errors = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), errors[0]
    for name in FAMILIES:
        found, expected = np.load(tmp_path / f"{name}.npz"), np.load(HERE / "figures" / f"{name}.npz")
        assert np.abs(found["logits"] - expected["logits"]).max() <= FP32, name
        assert found["generated"].tolist() == expected["generated"].tolist(), name
    if exchanged is not None:
        check_exchange(exchanged, imported)


MEGATRON = {
    **{"num_layers": 3, "hidden_size": 64, "ffn_hidden_size": 112, "num_attention_heads": 4, "kv_channels": 16},
    **{"group_query_attention": True, "num_query_groups": 2, "normalization": "RMSNorm", "norm_epsilon": 1e-6},
    **{"add_bias_linear": False, "add_qkv_bias": True, "qk_layernorm": False, "swiglu": True, "squared_relu": False},
    **{"untie_embeddings_and_output_weights": False, "apply_layernorm_1p": False, "position_embedding_type": "rope"},
    **{"rotary_percent": 1.0, "rotary_base": 1000000, "rotary_interleaved": False, "max_position_embeddings": 1024},
    **{"vocab_size": models.VOCAB, "padded_vocab_size": 512, "make_vocab_size_divisible_by": 128, "num_experts": None},
    **{"hidden_dropout": 0.0, "attention_dropout": 0.0, "init_method_std": 0.02, "multi_latent_attention": False},
    **{"use_rope_scaling": False, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "bf16": False},
}
"""Megatron-LM's arguments for the tiny Qwen 2, by its names (load_args_from_checkpoint of core_r0.19.0)."""
NEMO = {
    **{"num_layers": 3, "hidden_size": 64, "ffn_hidden_size": 112, "num_attention_heads": 4, "num_query_groups": 2},
    **{"kv_channels": 16, "encoder_seq_length": 1024, "max_position_embeddings": 1024, "activation": "fast-swiglu"},
    **{"normalization": "rmsnorm", "layernorm_epsilon": 1e-6, "bias": False, "qkv_bias": True, "mcore_gpt": True},
    **{"share_embeddings_and_output_weights": True, "position_embedding_type": "rope", "rotary_percentage": 1.0},
    **{"rotary_base": 1000000, "override_vocab_size": models.VOCAB, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    **{"nemo_version": "1.23.0", "target": "nemo.collections.nlp.models.…MegatronGPTModel"},
}


def prepare_exchange(imported: Path, tmp_path: Path, entries: list[dict[str, Any]]) -> Path:
    """Has the ranks write the tiny Qwen 2 as Megatron-LM and NeMo 1 do, and load what we export."""
    root = tmp_path / "exchange"
    for folder in ("lm/iter_0000007", "nemo/model_weights"):
        (root / folder).mkdir(parents=True)
    export_megatron(imported / "qwen2" / "ckpt", root / "exported")
    assert (root / "exported" / "latest_checkpointed_iteration.txt").read_text() == "release"
    entry = entries[FAMILIES.index("qwen2")]
    folders = {"written": "lm/iter_0000007", "nemo": "nemo/model_weights", "exported": "exported/release"}
    entry["exchange"] = {"arguments": MEGATRON, **{name: str(root / folder) for name, folder in folders.items()}}
    return root


def check_exchange(root: Path, imported: Path) -> None:
    """The same bits come back, from Megatron-LM's folder, NeMo's folder and NeMo's archive."""
    (root / "lm" / "latest_checkpointed_iteration.txt").write_text("7")
    (root / "nemo" / "model_config.yaml").write_text(yaml.safe_dump(NEMO))
    with tarfile.open(root / "model.nemo", "w:") as archive:
        for name in ("model_config.yaml", "model_weights"):
            archive.add(root / "nemo" / name, f"./{name}")
    original = Tensors(read_index(imported / "qwen2" / "ckpt"))
    for kind, source in (("megatron", "lm"), ("nemo", "nemo"), ("nemo", "model.nemo")):
        out = root / f"from-{source}"
        assert main(["checkpoint", "import", kind, str(root / source), str(out)]) == 0
        facts, metadata = read_facts(out), read_metadata(out)
        assert facts is not None and metadata.dtype == "fp32"
        before = read_facts(imported / "qwen2" / "ckpt")
        assert before is not None
        assert ModelShape.of_model(facts.model, 1) == ModelShape.of_model(before.model, 1)
        ours = Tensors(read_index(out))
        for key, layer in original.names():
            rows = models.VOCAB if "word_embeddings" in key else None
            assert np.array_equal(ours.get(key, layer)[:rows], original.get(key, layer)[:rows]), (kind, key, layer)


def qwen(
    version: int, layers: int, hidden: int, heads: int, groups: int, ffn: int, vocab: int, d: int, tied: bool
) -> Any:
    return {
        "architectures": [f"Qwen{version}ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "head_dim": d,
        "tie_word_embeddings": tied,
    }


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (qwen(2, 24, 896, 14, 2, 4864, 151936, 64, True), 494_032_768),  # Qwen2.5-0.5B
        (qwen(2, 28, 3584, 28, 4, 18944, 152064, 128, False), 7_615_616_512),  # Qwen2.5-7B
        (qwen(3, 28, 1024, 16, 8, 3072, 151936, 128, True), 596_049_920),  # Qwen3-0.6B
        (qwen(3, 36, 4096, 32, 8, 12288, 151936, 128, False), 8_190_735_360),  # Qwen3-8B
    ],
)
def test_parameters_are_those_that_the_model_cards_state(config: Any, published: int) -> None:
    family, model = read_config(config)
    assert sum(prod(shape) for part in parts(family, model) for shape in part.shapes) == published
    assert Shape.of(model, 4096).params == published


# --- recipe, template --------------------------------------------------------------------------------------------


def test_from_a_folder_to_a_planned_sft(imported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = tmp_path / "mine.yaml", tmp_path / "ckpt"
    words = ["checkpoint", "import", "hf", str(imported / "llama3" / "in"), str(out), "--recipe-out", str(recipe)]
    assert main(words) == 0
    assert main(["validate", str(recipe)]) == 0
    assert main(["plan", str(recipe), "--json"]) == 0
    assert '"fits": true' in capsys.readouterr().out
    found = load(str(recipe)).recipe
    assert found.model == read_folder(imported / "llama3" / "in").model
    assert (found.model.rope_base, found.model.rope_scaling, found.tokenizer.eod) == (500000, 8.0, "</s>")
    assert (found.checkpoint.source, found.checkpoint.load) == (FromPath(str(out)), ("weights",))
    assert Path(str(found.tokenizer.path)).is_file()
    # A template of the folder's own is the recipe's too.
    (out / "tokenizer" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert "template: tokenizer" in sft_recipe(out)


def test_the_template_writes_what_training_reads() -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    tokens = ChatTokens(system_turn_start="<s\"'\\>", turn_start="<é{{1}}>", end_of_turn="\n", end_of_name="\n")
    source = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template(tokens))
    turns = [("User", "Hi <b>\n"), ("Assistant", " Yes.  "), ("User", "why?")]
    row = Conversation(
        system="Be\nbrief.",
        turns=tuple(Turn(speaker=s, value=v, label=None) for s, v in turns),
        masked=frozenset({"User"}),
        order=None,
    )
    (expected,) = render(row, tokens, "</s>")
    messages = [{"role": s.lower(), "content": v} for s, v in turns]
    told = [{"role": "system", "content": "Be\nbrief."}, *messages]
    assert source.render(messages=told) == expected.text
    assert source.render(messages=told, add_generation_prompt=True) == expected.text + "<é{{1}}>Assistant\n"
    assert source.render(messages=messages).startswith("<s\"'\\>System\n\n<é{{1}}>User\n")


# --- refused -----------------------------------------------------------------------------------------------------

_ROPE = {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "sliding window": ("mistral", {"sliding_window": 4096}, "sliding_window = 4096"),
    "yarn": ("llama2", {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 64}}, "beta_fast = 64"),
    "scales": ("llama2", {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0}}, "rope_scaling.mscale = 1.0"),
    "partial yarn": ("nemotron", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "partial_rotary_factor = 0.5"),
    "dynamic": ("llama3", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type = 'dynamic'"),
    "factor": ("llama3", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor"),
    "context": ("llama3", {"rope_parameters": {**_ROPE, "original_max_position_embeddings": 4096}}, "nearest: 8192"),
    "base": ("llama2", {"rope_theta": 10000.5}, "rope_theta = 10000.5"),
    "bias": ("llama2", {"attention_bias": True}, "attention_bias"),
    "qwen window": ("qwen2", {"use_sliding_window": True}, "sliding_window = 32"),
    "qwen bias": ("qwen3", {"attention_bias": True}, "attention_bias"),
    "no bias": ("llama2", {"architectures": ["Qwen2ForCausalLM"]}, "q_proj.bias"),
    "no norm": ("llama2", {"architectures": ["Qwen3ForCausalLM"]}, "q_norm.weight"),
    "other": ("llama2", {"architectures": ["FalconForCausalLM"]}, "FalconForCausalLM"),
    "activation": ("llama2", {"hidden_act": "gelu_pytorch_tanh"}, "gelu_pytorch_tanh"),
    "quantized": ("llama2", {"quantization_config": {"bits": 4}}, "quantization_config"),
    "shape": ("llama2", {"intermediate_size": 128}, "must have shape [128, 64] by config.json"),
    "layers": ("nemotron", {"num_hidden_layers": 4}, "model.layers.3.input_layernorm.weight: is missing"),
    "fewer": ("nemotron", {"num_hidden_layers": 2}, "is not a tensor of NemotronForCausalLM"),
    "text": ("llama2", {"hidden_size": "64"}, "hidden_size = '64'"),
    "absent": ("llama2", {"hidden_size": None}, "hidden_size"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_computed_is_refused_by_name(tmp_path: Path, case: str) -> None:
    name, change, text = REFUSED[case]
    models.write(tmp_path / "in", name, change=change)
    with pytest.raises(RefusedInput) as refused:
        import_hf(tmp_path / "in", tmp_path / "out")
    assert text.replace(": is missing", "") in str(refused.value)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_folders_that_are_none(tmp_path: Path) -> None:
    whole = models.write(tmp_path / "in", "llama2")
    shard = whole / "model-00002-of-00003.safetensors"
    data = shard.read_bytes()
    for damage, text in (
        (data[:-1], "may be truncated"),
        (data[:4], "cannot be read"),
        (b"\xff" * 64, "cannot be read"),
        (None, "missing"),
    ):
        shard.unlink(missing_ok=True)
        if damage is not None:
            shard.write_bytes(damage)
        with pytest.raises(RefusedInput, match=text):
            import_hf(whole, tmp_path / "out")
    shard.write_bytes(data)
    index = whole / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001", "../model-00001"))
    with pytest.raises(RefusedInput, match="not a file in its folder"):
        import_hf(whole, tmp_path / "out")
    for path in (index, *whole.glob("*.safetensors")):
        path.unlink()
    (whole / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(RefusedInput, match="pickle files"):
        import_hf(whole, tmp_path / "out")
    with pytest.raises(RefusedInput, match=r"no config\.json"):
        import_hf(tmp_path / "nothing", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


# --- whole or not at all -----------------------------------------------------------------------------------------


def test_a_failure_leaves_no_whole_folder(imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr(importing.Writer, "close", full)
    with pytest.raises(OSError, match="No space"):
        import_hf(imported / "llama2" / "in", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [], "no file was complete"
    monkeypatch.undo()
    monkeypatch.setattr("colosseum.checkpoint.hf.card.text", full)
    with pytest.raises(OSError, match="No space"):
        export_hf(imported / "llama2" / "ckpt", tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Disk", (), {"free": 1000}))
    with pytest.raises(EnvironmentFault):
        import_hf(imported / "llama2" / "in", tmp_path / "other")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [".out.partial"], "complete files wait for the next call"
    export_hf(imported / "llama2" / "ckpt", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_kill_leaves_nothing_that_passes_for_whole(imported: Path, tmp_path: Path) -> None:
    """It dies when all files but colosseum.json are written."""
    source, out = imported / "llama2" / "in", tmp_path / "out"
    program = (
        "import os, sys, pathlib; from colosseum.checkpoint.hf import importing\n"
        "importing._metadata = lambda *_: os.kill(os.getpid(), 9)\n"
        "importing.import_hf(*map(pathlib.Path, sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(source), str(out)], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = tmp_path.iterdir()
    assert left.name == ".out.partial" and (left / "files" / ".metadata").is_file()
    with pytest.raises(RefusedInput, match="not a complete checkpoint"):
        read_metadata(left / "files")
    import_hf(source, out)
    assert read_metadata(out).step == 0


def test_one_flipped_byte_is_found(imported: Path, tmp_path: Path) -> None:
    import_hf(imported / "llama2" / "in", tmp_path / "ckpt")
    for file in ("__0_0.distcp", "tokenizer/tokenizer.json", "model.json"):
        path = tmp_path / "ckpt" / file
        data = path.read_bytes()
        at = data.rindex(b"Llama" if file == "model.json" else data[-40:-39])
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(RefusedInput, match="changed since it was written|cannot be read"):  # noqa: RUF043
            export_hf(tmp_path / "ckpt", tmp_path / "out")
        path.write_bytes(data)
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_over(imported: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    folder, checkpoint = str(imported / "llama2" / "in"), str(imported / "llama2" / "ckpt")
    assert main(["checkpoint", "import", "hf", folder, str(tmp_path / "out")]) == 2
    assert main(["checkpoint", "export", "hf", checkpoint, str(tmp_path / "out")]) == 2
    assert list((tmp_path / "out").iterdir()) == []
