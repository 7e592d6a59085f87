"""A YAML of NeMo 1.x or NeMo-Aligner -> a recipe's data. What it leaves out has the template's default, as there.

``${key}`` and ``${.key}`` are followed inside the file; no other interpolation is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from colosseum.engines.foreign_options import nemo1_defaults, nemo1_keys
from colosseum.engines.importing import UNREAD, Finding, Imported, direct, finding
from colosseum.engines.nemo1.config import ACTIVATIONS, SCHEDULES
from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.scan import REFERENCE_RULE, scan

_SAME = {
    "model": """num_layers hidden_size num_attention_heads ffn_hidden_size num_query_groups kv_channels
        layernorm_epsilon add_bias_linear add_qkv_bias tied_embeddings position_embedding_type rotary_percent rope_base
        hidden_dropout attention_dropout init_method_std""",
    "data": "eod_mask_loss reset_position_ids reset_attention_mask cache_dir",
    "batch": "gbs mbs seq_length",
    "parallelism": "tp pp cp sequence_parallel",
    "recompute": "method num_layers",
    "precision": """fp8_params fp8_wgrad fp8_margin fp8_interval fp8_amax_history_len fp8_amax_compute_algo""",
    "optimizer": "lr min_lr warmup_steps weight_decay eps",
    "train": "seed deterministic",
    "overlap": """tp_comm p2p batch_p2p grad_reduce param_gather defer_embedding_wgrad_compute wgrad_deferral_limit""",
    "fusion": "cross_entropy rope gradient_accumulation",
    "resources": "gpus_per_node",
    "task": "beta loss sft_weight average_log_probs",
}
_REFERENCE = re.compile(r"\$\{(\.*)([\w.]+)\}")
DEEPEST = 8
"""How often a reference may lead to another."""
NUMBER = (int, float)
PLAIN = tuple(f"{section}.{name}" for section, names in _SAME.items() for name in names.split())
"""Fields whose values are written alike on both sides."""
OPTIONAL = ("num_query_groups", "kv_channels", "cache_dir", "method", "num_layers")
SILENT = {
    *("name", "trainer.accelerator", "trainer.logger", "trainer.enable_checkpointing", "trainer.max_epochs"),
    *("trainer.use_distributed_sampler", "trainer.max_steps", "trainer.max_time", "model.max_position_embeddings"),
    *("model.mcore_gpt", "model.transformer_engine", "model.megatron_amp_O2", "model.data.seq_length", "precision"),
    *("model.data.data_impl", "model.data.splits_string", "model.ub_tp_comm_bootstrap_backend"),
    "model.precision",
}
"""Said by the engine itself, or by another field."""


def from_text(text: str, name: str) -> Imported:
    """The YAML of a file called ``name``.

    Raises:
        RefusedInput: it is no YAML mapping, or no safe one (``recipe.scan``).
    """
    scanned = scan(text, name)
    # NeMo's own YAML files use interpolations that a recipe may not have.
    if faults := [fault for fault in scanned.faults if fault.rule != REFERENCE_RULE]:
        raise RefusedInput(faults)
    if not isinstance(scanned.data, dict):
        raise RefusedInput([Fault(path="FILE", value=name, rule="is not a YAML mapping")])
    return read(scanned.data)


def model_values(text: str, name: str) -> dict[str, Any]:
    """The model section of the ``model_config.yaml`` in a ``.nemo``; without ``vocab_size`` where it says none.

    Raises:
        RefusedInput: as ``from_text``.
    """
    scanned = scan(text, name)
    if faults := [fault for fault in scanned.faults if fault.rule != REFERENCE_RULE]:
        raise RefusedInput(faults)
    if not isinstance(scanned.data, dict):
        raise RefusedInput([Fault(path="FILE", value=name, rule="is not a YAML mapping")])
    fields = read({"model": scanned.data}).fields
    values = {path.removeprefix("model."): value for path, value in fields.items() if path.startswith("model.")}
    longest = scanned.data.get("max_position_embeddings") or scanned.data.get("encoder_seq_length")
    return {**values, "max_position_embeddings": longest if isinstance(longest, int) else None}


def read(data: dict[str, Any]) -> Imported:
    """All keys of the file, in its order."""
    written = dict(_flat(data))
    flat = {key: _followed(key, value, written) for key, value in written.items()}
    task = "dpo" if any(".dpo." in key for key in flat) else "sft" if any(".sft." in key for key in flat) else "cpt"
    values = {**nemo1_defaults(task), **flat}
    found = Imported("nemo1")
    used, unread = _fields(found, values, task)
    for key, value in flat.items():
        # A launcher's own sections speak of the cluster.
        if key in unread:
            found.findings.append(Finding(key=key, value=value, kind=UNREAD))
        elif key not in used | SILENT and key.split(".")[0] not in ("defaults", "run", "hydra"):
            found.findings.append(finding(key, value, nemo1_keys(), len(found.findings)))
    return found


def _followed(key: str, value: Any, flat: Mapping[str, Any]) -> Any:
    """What a reference leads to; other values, and references that lead nowhere, as they are."""
    for _ in range(DEEPEST):
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            break
        parents = key.split(".")[: -len(match[1])] if match[1] else []
        key = ".".join([*parents, match[2]])
        if key not in flat:
            break
        value = flat[key]
    return value


def _flat(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _fields(found: Imported, values: dict[str, Any], task: str) -> tuple[set[str], set[str]]:
    """Fills the fields; the keys that were looked at, and those of them whose value could not be read."""
    put, used, unread = found.fields, set(), set()

    def take(key: str, kind: type | tuple[type, ...] = object) -> Any:
        """The value if it is of a kind, else None."""
        used.add(key)
        value = values.get(key)
        left_open = isinstance(value, str) and ("${" in value or value == "???")
        if value is None or (isinstance(value, kind) and not left_open):
            return value
        unread.add(key)
        return None

    put["name"] = _name(take("exp_manager.name") or take("name"))
    put["engine"] = "nemo1"
    put["task.kind"] = task
    _special(put, take, task)
    _of_task(put, take, task)
    for key, path in direct("nemo1", PLAIN).items():
        if path.startswith("task.") and task != "dpo":
            continue
        value = take(key)
        if value is not None or (path.rpartition(".")[2] in OPTIONAL and key in values):
            put[path] = value
    return used, unread


def _name(text: Any) -> str:
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in str(text or "imported"))[:64].lstrip("._-")
    return kept or "imported"


def _special(put: dict[str, Any], take: Any, task: str) -> None:
    """Values that are written otherwise on the two sides."""
    names = {there: here for here, there in ACTIVATIONS.items()} | {"swiglu": ("silu", True), "geglu": ("gelu", True)}
    activation, normalization = take("model.activation", str), take("model.normalization", str)
    if activation in names:
        put["model.activation_func"], put["model.gated_linear_unit"] = names[activation]
    if normalization is not None:
        put["model.normalization"] = "RMSNorm" if normalization == "rmsnorm" else "LayerNorm"
        put["model.layernorm_zero_centered_gamma"] = normalization == "layernorm1p"
    unit, rows = take("model.make_vocab_size_divisible_by", int), take("model.override_vocab_size", int)
    if rows:
        # NeMo then has just these rows, at any TP, and reads no padding unit.
        put["model.vocab_size"], unit = rows, 1
    if unit:
        put["model.make_vocab_size_divisible_by"] = unit
    divided, stretched = take("model.seq_len_interpolation_factor", NUMBER), take("model.scale_positional_embedding")
    factor = take("model.scale_factor", NUMBER)
    if divided or stretched is True:
        put["model.rope_scaling"] = float(divided or factor or 8.0)  # 8: megatron_gpt_model.py
        put["model.rope_scaling_type"] = "linear" if divided else "llama3"
    put["parallelism.vpp"] = take("model.virtual_pipeline_model_parallel_size") or 1
    put["recompute.granularity"] = take("model.activations_checkpoint_granularity") or "none"
    fp32 = str(take("trainer.precision")) in ("32", "32-true")
    put["precision.dtype"] = "fp32" if fp32 else "bf16"
    put["precision.fp8"] = "delayed" if take("model.fp8", bool) else "none"
    put["precision.fp8_format"] = "e4m3" if take("model.fp8_e4m3", bool) else "hybrid"
    take("model.fp8_hybrid")
    put["precision.grad_reduce_dtype"] = take("model.optim.grad_sync_dtype") or "auto"
    put["optimizer.distributed"] = "distributed" in str(take("model.optim.name"))
    betas = take("model.optim.betas", list)
    if betas is not None:
        put |= dict(zip(("optimizer.beta1", "optimizer.beta2"), betas, strict=False))
    schedules = {there: here for here, there in SCHEDULES.items()}
    put["optimizer.lr_schedule"] = schedules.get(take("model.optim.sched.name", str) or "", "cosine")
    take("model.optim.sched.constant_steps")
    nodes, per_node = take("trainer.num_nodes", int) or 1, take("trainer.devices", int) or 1
    put["resources.gpus"] = nodes * per_node
    keep = take("exp_manager.checkpoint_callback_params.save_top_k")
    put["checkpoint.keep_last"] = None if keep in (None, -1) else keep
    asynchronous = take("exp_manager.checkpoint_callback_params.async_save")
    put["checkpoint.async"] = bool(asynchronous) and task == "cpt"
    library = take("model.tokenizer.library", str)
    model, kind = take("model.tokenizer.model", str), take("model.tokenizer.type", str)
    if library == "sentencepiece":
        put["tokenizer.kind"], put["tokenizer.path"] = "sentencepiece", model
    elif library == "huggingface" and kind:
        put["tokenizer.kind"], put["tokenizer.path"] = "tokenizer_json", f"{kind}/tokenizer.json"


def _of_task(put: dict[str, Any], take: Any, task: str) -> None:
    """Length, validation, data and first weights: other keys for every task."""
    home = "trainer" if task == "cpt" else f"trainer.{task}"
    put["optimizer.clip_grad"] = float(take(f"{home}.gradient_clip_val", NUMBER) or 0)
    every = take(f"{home}.val_check_interval")
    if isinstance(every, int):
        put["train.val_every_steps"] = every
    steps = take(f"{home}.limit_val_batches")
    if isinstance(steps, int):
        put["train.val_steps"] = steps
    saved = take(f"{home}.save_interval") or take("exp_manager.checkpoint_callback_params.every_n_train_steps") or every
    if isinstance(saved, int):
        put["checkpoint.every_steps"] = saved
    source = take("pretrained_checkpoint.restore_from_path") or take("model.restore_from_path")
    if source:
        put["checkpoint.from"], put["checkpoint.load"] = source, ["weights"]
    if task == "cpt":
        put["train.steps"] = take("trainer.max_steps")
        put["train.log_every_steps"] = take("trainer.log_every_n_steps")
        prefix = take("model.data.data_prefix", list) or take("model.data.data_prefix.train", list)
        if prefix is not None:
            put["data.blend"] = _blend(prefix)
        if split := take("model.data.splits_string"):
            put["data.split"] = split
        return
    most = take(f"{home}.max_steps")
    put |= {"train.steps": most} if isinstance(most, int) and most > 0 else {"train.epochs": take(f"{home}.max_epochs")}
    if task == "sft":
        put["data.train"] = take("model.data.train_ds.file_path")
        put["data.validation"] = take("model.data.validation_ds.file_path")
        put["task.format"] = "chat" if take("model.data.chat") else "prompt_response"
        put["task.shuffle"] = bool(take("model.data.train_ds.shuffle"))
        put["task.num_workers"] = take("model.data.num_workers")
        for name in ("system_turn_start", "turn_start", "label_start", "end_of_turn", "end_of_name"):
            put[f"task.chat_tokens.{name}"] = take(f"model.data.chat_prompt_tokens.{name}")
        put["batch.gbs"] = take("model.data.train_ds.global_batch_size")
        put["batch.mbs"] = take("model.data.train_ds.micro_batch_size")
        return
    for name in ("train", "validation"):
        files = take(f"model.data.data_prefix.{name}")
        put[f"data.{name}"] = files[0] if isinstance(files, list) and files else files
    put["task.logprob_mbs"] = take("model.dpo.log_prob_forward_micro_batch_size")


def _blend(prefix: list[Any]) -> list[dict[str, Any]]:
    """``[weight, path, …]``, or paths alone; the recipe's own rules judge what they are."""
    if not any(map(_weight, prefix)):
        return [{"path": path, "weight": 1.0} for path in prefix]
    pairs = zip(prefix[::2], prefix[1::2], strict=False)
    return [{"path": path, "weight": _weight(weight) or weight} for weight, path in pairs]


def _weight(item: Any) -> float | None:
    try:
        return float(item)
    except (TypeError, ValueError):
        return None
