"""Megatron-LM's torch_dist checkpoints: in, and out again.

Beside the tensors stand Megatron-LM's arguments, an ``argparse.Namespace`` in ``common.pt`` (megatron-core 0.16) or in
an object ``common_state`` (0.19): they say which model it is, and Megatron-LM compares them on a load.
"""

from __future__ import annotations

import argparse
from math import prod
from pathlib import Path
from typing import Any

import torch

from colosseum.atomic import to_disk
from colosseum.checkpoint import folders
from colosseum.checkpoint.adapters import MergedTensors
from colosseum.checkpoint.foreign import import_weights, model_from
from colosseum.checkpoint.hf.origin import origin_of
from colosseum.checkpoint.metadata import CheckpointMetadata
from colosseum.checkpoint.partial import folder_continued, key_of
from colosseum.checkpoint.torchdist import Index, Tensors, read_index, read_item
from colosseum.checkpoint.unpickle import DEFAULT, FOREIGN, load_torch
from colosseum.checkpoint.weights import TABLES, weights_of
from colosseum.checkpoint.writing import DTYPES, Progress, Writer, make_room, refuse_existing
from colosseum.errors import Fault, RefusedInput
from colosseum.reading import Unreadable, read_bytes
from colosseum.recipe.schema import Model
from colosseum.rundir import CHECKPOINT_MARK, LATEST_FILE, checkpoint_folder

COMMON, COMMON_STATE = "common.pt", "common_state"
RELEASE = "release"
"""What Megatron-LM calls a checkpoint of weights that no iteration wrote."""
VERSION = 3.0
"""checkpoint_version: how QKV rows are sorted since 2020."""
SAME = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "normalization"),
    *("add_bias_linear", "add_qkv_bias", "qk_layernorm", "position_embedding_type", "rotary_percent"),
    *("max_position_embeddings", "hidden_dropout", "attention_dropout", "init_method_std"),
    "make_vocab_size_divisible_by",
)
"""Arguments and fields of one name."""
OTHER = {
    "num_experts": None,
    "multi_latent_attention": False,
    "rotary_interleaved": False,
    "mtp_num_layers": None,
    "window_size": None,
    "qk_l2_norm": False,
    "no_rope_freq": None,
    "apply_query_key_layer_scaling": False,
    "rotary_seq_len_interpolation_factor": None,
}
"""Arguments that a recipe has no field for, and what they are in the models that the runtime computes."""
ACTIVATIONS = {"swiglu": ("silu", True), "squared_relu": ("squared_relu", False)}


def import_megatron(
    folder: Path, out: Path, *, model: Model | None = None, progress: Progress | None = None
) -> CheckpointMetadata:
    """Writes the checkpoint ``out`` from Megatron-LM's ``iter_N`` or ``release``, or the newest of a folder of them.

    Args:
        model: which model it is of; None = the one that Megatron-LM's stored arguments describe.

    Raises:
        RefusedInput: it is none, or of a model that the runtime does not compute.
    """
    folder = _newest(folder)
    index = read_index(folder)
    model = model or model_of(arguments_of(folder, index), str(folder))
    name = folder.resolve().parent.name
    return import_weights(index, model, out, name=name, run_id=f"megatron:{name}", progress=progress)


def _newest(folder: Path) -> Path:
    try:
        text = read_bytes(folder / LATEST_FILE, 100).decode("ascii", "replace").strip()
    except (OSError, Unreadable):
        return folder
    return folder / RELEASE if text == RELEASE else checkpoint_folder(folder, int(text)) if text.isdigit() else folder


def arguments_of(folder: Path, index: Index) -> argparse.Namespace:
    """Megatron-LM's arguments, read through the list of data types.

    Raises:
        RefusedInput: there are none.
    """
    common: Any = None
    if (folder / COMMON).is_file():
        common = load_torch(folder / COMMON, allow=DEFAULT | FOREIGN)
    elif item := next((i for i in index.items if i.key.partition("/")[0] == COMMON_STATE), None):
        common = read_item(folder, item)
        common = common[0] if isinstance(common, list) and len(common) == 1 else common
    found = common.get("args") if isinstance(common, dict) else None
    if not isinstance(found, argparse.Namespace):
        raise RefusedInput(f"{folder} holds no arguments of Megatron-LM: nothing says which model it is of")
    return found


def model_of(args: argparse.Namespace, where: str) -> Model:
    """The model section of Megatron-LM's arguments.

    Raises:
        RefusedInput: it is one that the runtime does not compute; all faults at once.
    """
    told = vars(args)
    faults = []
    for name, value in OTHER.items():
        if told.get(name) not in (value, None, False):
            rule = "the runtime does not support this"
            faults.append(Fault(path=name, value=str(told[name])[:80], rule=rule, nearest=(value,), where=where))
    if told.get("position_embedding_type") not in ("rope", "learned_absolute"):
        kind = told.get("position_embedding_type")
        faults.append(Fault(path="position_embedding_type", value=kind, rule="is not computed", where=where))
    if faults:
        raise RefusedInput(faults)
    values = {name: told[name] for name in SAME if told.get(name) is not None}
    active = [pair for name, pair in ACTIVATIONS.items() if told.get(name)]
    values["activation_func"], values["gated_linear_unit"] = active[0] if active else ("gelu", False)
    grouped = told.get("group_query_attention")
    values["num_query_groups"] = told.get("num_query_groups") if grouped else told.get("num_attention_heads")
    centred = told.get("layernorm_zero_centered_gamma", told.get("apply_layernorm_1p"))
    epsilon = told.get("layernorm_epsilon", told.get("norm_epsilon"))
    values |= {"layernorm_zero_centered_gamma": bool(centred), "rope_base": told.get("rotary_base", 10000)}
    values |= {} if epsilon is None else {"layernorm_epsilon": epsilon}
    values["tied_embeddings"] = not told.get("untie_embeddings_and_output_weights")
    values["rope_scaling"] = 8.0 if told.get("use_rope_scaling") else None  # whatever rope_scaling_factor says
    values["vocab_size"] = told.get("vocab_size") or told.get("padded_vocab_size")
    return model_from(values, where)


# --- out ---------------------------------------------------------------------------------------------------------


def export_megatron(checkpoint: Path, out: Path, *, progress: Progress | None = None) -> Path:
    """Writes ``out/release``, which ``--pretrained-checkpoint out`` of Megatron-LM loads: weights only.

    Raises:
        RefusedInput: the checkpoint is not finished or damaged, Megatron-LM does not compute its model, ``out`` exists.
        EnvironmentFault: the disk has not enough room.
    """
    refuse_existing(out)
    metadata = folders.read_metadata(checkpoint)
    model = origin_of(checkpoint, metadata).model
    model = model.model_copy(
        update={"max_position_embeddings": model.max_position_embeddings or metadata.model.seq_length}
    )
    args = arguments(model, metadata)
    dtype = DTYPES[metadata.dtype]
    size = sum(prod(shape) for _, _, shape in weights_of(model)) * dtype.itemsize
    make_room(out, size)
    folders.check_sums(checkpoint, metadata)
    tensors = MergedTensors(Tensors(read_index(checkpoint)), metadata.lora)
    identity = key_of("export megatron", (checkpoint / CHECKPOINT_MARK).read_text())
    with folder_continued(out, identity) as part:
        temporary, folder = part.folder, part.folder / RELEASE
        folder.mkdir(exist_ok=True)
        with Writer(folder, part=part) as writer:
            for key, layer, shape in weights_of(model):

                def make(key: str = key, layer: int | None = layer) -> torch.Tensor:
                    tensor = tensors.get(key, layer).to(dtype)
                    return _rows(tensor, model) if key in TABLES else tensor

                rows = (model.padded_vocab(1), *shape[1:]) if key in TABLES else shape
                writer.tensor(key, rows, make, layer, model.num_layers)
                if progress is not None:
                    progress(writer.total, size)
            writer.objects(model)
            writer.close(dtype)
        torch.save({"args": args, "checkpoint_version": VERSION, "iteration": 0}, folder / COMMON)
        (temporary / LATEST_FILE).write_text(RELEASE)
        for path in (*folder.iterdir(), temporary / LATEST_FILE):
            to_disk(path)
        to_disk(folder)
    return out


def _rows(table: torch.Tensor, model: Model) -> torch.Tensor:
    """The rows of one process, whatever TP wrote the checkpoint."""
    return table[: model.padded_vocab(1)]


def arguments(model: Model, metadata: CheckpointMetadata) -> argparse.Namespace:
    """What Megatron-LM reads of a checkpoint's arguments, and compares with its own.

    Raises:
        RefusedInput: Megatron-LM has no words for the model.
    """
    kind = next((n for n, pair in ACTIVATIONS.items() if pair == (model.activation_func, model.gated_linear_unit)), "")
    if not kind and (model.activation_func, model.gated_linear_unit) != ("gelu", False):
        raise RefusedInput(f"Megatron-LM has no option for {model.activation_func}, gated or not as this model is")
    if model.rope_scaling not in (None, 8.0) or (model.rope_scaling and model.rope_scaling_type != "llama3"):
        raise RefusedInput("Megatron-LM scales RoPE as llama3 by 8 only, which is not this model's scaling")
    values = {name: getattr(model, name) for name in SAME}
    values |= {"ffn_hidden_size": model.ffn, "kv_channels": model.head_dim, **dict.fromkeys(ACTIVATIONS, False)}
    values |= {kind: True} if kind else {}
    values |= {
        **OTHER,
        "num_query_groups": model.query_groups,
        "group_query_attention": model.query_groups != model.num_attention_heads,
        "rotary_base": model.rope_base,
        "use_rope_scaling": model.rope_scaling is not None,
        "rope_scaling_factor": model.rope_scaling or 8.0,
        "use_rotary_position_embeddings": model.position_embedding_type == "rope",
        "add_position_embedding": model.position_embedding_type == "learned_absolute",
        "apply_layernorm_1p": model.layernorm_zero_centered_gamma,
        "layernorm_zero_centered_gamma": model.layernorm_zero_centered_gamma,
        "norm_epsilon": model.layernorm_epsilon,
        "layernorm_epsilon": model.layernorm_epsilon,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "vocab_size": model.vocab_size,
        "padded_vocab_size": model.padded_vocab(1),
        "seq_length": metadata.model.seq_length,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "world_size": 1,
        "data_parallel_size": 1,
        "consumed_train_samples": 0,
        "skipped_train_samples": 0,
        "consumed_valid_samples": 0,
        "no_save_optim": True,
        "no_save_rng": True,
        "ckpt_format": "torch_dist",
        "bf16": metadata.dtype == "bf16",
        "fp16": False,
    }
    return argparse.Namespace(**values)
