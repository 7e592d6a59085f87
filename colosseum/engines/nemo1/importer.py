"""A YAML of NeMo 1.x or NeMo-Aligner -> a recipe's data. What it leaves out has the template's default, as there.

``${key}`` and ``${.key}`` are followed inside the file; no other interpolation is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from colosseum.engines.foreign_options import nemo1_defaults, nemo1_keys, treatments
from colosseum.engines.importing import DECIDE, HARMLESS, MISSING, REFUSED, UNREAD, Finding, Imported, direct, finding
from colosseum.engines.nemo1.config import ACTIVATIONS, SCHEDULES
from colosseum.engines.slurm_time import slurm_seconds, written_duration
from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.scan import REFERENCE_RULE, scan

_SAME = {
    "model": """num_layers hidden_size num_attention_heads ffn_hidden_size num_query_groups kv_channels
        layernorm_epsilon add_bias_linear add_qkv_bias tied_embeddings position_embedding_type rotary_percent rope_base
        hidden_dropout attention_dropout init_method_std""",
    "data": "eod_mask_loss reset_position_ids reset_attention_mask cache_dir",
    "batch": "gbs mbs seq_length",
    "parallelism": """tp pp cp sequence_parallel account_for_embedding_in_pipeline_split
        account_for_loss_in_pipeline_split microbatch_group_size_per_vp_stage""",
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
NORMS = ("layernorm", "layernorm1p", "rmsnorm")
OPTIMIZERS = ("fused_adam", "distributed_fused_adam", "mcore_distributed_optim", "adamw")
OTHER_TASKS = ("kto", "ppo", "rm", "spin", "knowledge_distillation", "reinforce", "rs", "self_rewarding", "steerlm2")
"""Tasks of NeMo-Aligner beside sft and dpo: sections of ``trainer`` or ``model``."""
SAME_AS = {
    "model.data.seq_length": "model.encoder_seq_length",
    "model.seq_length": "model.encoder_seq_length",
    "model.data.train_ds.max_seq_length": "model.encoder_seq_length",
    "model.dpo.sft_average_log_probs": "model.dpo.preference_average_log_probs",
}
"""Keys that say again what another key says: silent where they do."""


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
    defaults = nemo1_defaults(task)
    values = {**defaults, **flat}
    found = Imported("nemo1")
    _refuse_other_tasks(found, flat)
    used, unread = _fields(found, values, task, flat)
    said = {finding.key for finding in found.findings}
    for key, value in flat.items():
        if key in said:
            continue
        if key in unread:
            found.findings.append(Finding(key=key, value=value, kind=UNREAD))
        elif key not in used and not _says_nothing(key, values, defaults):
            found.findings.append(finding(key, value, treatments("nemo1"), _known(key), len(found.findings)))
    return found


def _refuse_other_tasks(found: Imported, flat: Mapping[str, Any]) -> None:
    for task in OTHER_TASKS:
        key = next((key for key in flat if key.startswith((f"trainer.{task}.", f"model.{task}."))), None)
        if key is not None and (task != "steerlm2" or key.startswith("trainer.")):
            found.add(key, flat[key], REFUSED, f"the task is {task.upper()}; a recipe's are cpt, sft, dpo")


def _says_nothing(key: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> bool:
    """Whether a key has the template's default, or null, or the value that another key has."""
    value = values[key]
    same = SAME_AS.get(key)
    if same is not None:
        return bool(value == values.get(same))
    is_off = key.startswith("model.mcore_customization_config") and value is False
    return value is None or is_off or (key in defaults and value == defaults[key])


def _known(key: str) -> frozenset[str]:
    """Keys of the templates; keys of sections whose keys are free, and live keys that no template has, too."""
    free = ("run.", "hydra.", "model.mcore_customization_config.", "model.hyena.", "trainer.", "exp_manager.")
    live = ("model.name", "model.parallel_attention", "model.precision")
    listed = key.startswith(free[:4]) or key in live
    return nemo1_keys() | {key} if listed else nemo1_keys()


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


def _fields(found: Imported, values: dict[str, Any], task: str, flat: Mapping[str, Any]) -> tuple[set[str], set[str]]:
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

    put["name"] = _name(flat.get("exp_manager.name") or take("name") or take("exp_manager.name"))
    put["engine"] = "nemo1"
    put["task.kind"] = task
    _special(found, take, task)
    _resources(found, take, flat)
    _of_task(found, take, task, flat)
    _optimizer(found, take)
    for key, path in direct("nemo1", PLAIN).items():
        if path.startswith("task.") and task != "dpo":
            continue
        value = take(key)
        if path == "model.rope_base" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None or (path.rpartition(".")[2] in OPTIONAL and key in values):
            put[path] = value
    if flat.get("model.megatron_amp_O2") is False:
        found.add("model.megatron_amp_O2", False, DECIDE, "weights then stay in FP32, under autocast")
    return used, unread


def _name(text: Any) -> str:
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in str(text or "imported"))[:64].lstrip("._-")
    return kept or "imported"


def _special(found: Imported, take: Any, task: str) -> None:
    """Values that are written otherwise on the two sides."""
    put = found.fields
    names = {there: here for here, there in ACTIVATIONS.items()} | {"swiglu": ("silu", True), "geglu": ("gelu", True)}
    activation, normalization = take("model.activation", str), take("model.normalization", str)
    if activation in names:
        put["model.activation_func"], put["model.gated_linear_unit"] = names[activation]
    elif activation is not None:
        found.add("model.activation", activation, REFUSED, f"a recipe's are {', '.join(sorted(names))}")
    if normalization in NORMS:
        put["model.normalization"] = "RMSNorm" if normalization == "rmsnorm" else "LayerNorm"
        put["model.layernorm_zero_centered_gamma"] = normalization == "layernorm1p"
    elif normalization is not None:
        found.add("model.normalization", normalization, REFUSED, f"a recipe's are {', '.join(NORMS)}")
    kind = take("model.position_embedding_type", str)
    if kind not in (None, "rope", "learned_absolute"):
        found.add("model.position_embedding_type", kind, REFUSED, "a recipe's are rope, learned_absolute")
    longest = take("model.max_position_embeddings", int)
    if longest is not None:
        put["model.max_position_embeddings"] = longest
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
    _precision(found, take)
    keep = take("exp_manager.checkpoint_callback_params.save_top_k")
    put["checkpoint.keep_last"] = None if keep in (None, -1) else keep
    asynchronous = take("exp_manager.checkpoint_callback_params.async_save")
    put["checkpoint.async"] = bool(asynchronous) and task == "cpt"
    _tokenizer(found, take, task)


def _precision(found: Imported, take: Any) -> None:
    put = found.fields
    precision = str(take("trainer.precision"))
    if precision in ("32", "32-true"):
        put["precision.dtype"] = "fp32"
    elif precision.startswith("bf16"):
        put["precision.dtype"] = "bf16"
    else:
        found.add("trainer.precision", precision, DECIDE, "a recipe has bf16 and fp32")
    narrow, hybrid = take("model.fp8_e4m3", bool), take("model.fp8_hybrid", bool)
    # NeMo: with neither format there is no FP8.
    put["precision.fp8"] = "delayed" if take("model.fp8", bool) and (narrow or hybrid) else "none"
    put["precision.fp8_format"] = "e4m3" if narrow else "hybrid"


def _tokenizer(found: Imported, take: Any, task: str) -> None:
    put = found.fields
    library = take("model.tokenizer.library", str)
    model, kind = take("model.tokenizer.model", str), take("model.tokenizer.type", str)
    if library == "sentencepiece":
        put["tokenizer.kind"], put["tokenizer.path"] = "sentencepiece", model
        if kind not in (None, "GPT2BPETokenizer"):
            found.add("model.tokenizer.type", kind, HARMLESS, "library sentencepiece reads model.tokenizer.model")
    elif library == "huggingface" and kind:
        put["tokenizer.kind"], put["tokenizer.path"] = "tokenizer_json", f"{kind}/tokenizer.json"
    elif task == "cpt":
        found.add("model.tokenizer.library", library, MISSING, "set tokenizer.path and model.vocab_size")


def _optimizer(found: Imported, take: Any) -> None:
    put = found.fields
    name = take("model.optim.name", str)
    put["optimizer.distributed"] = "distributed" in str(name)
    if name not in OPTIMIZERS:
        found.add("model.optim.name", name, DECIDE, f"a recipe has adam: {', '.join(OPTIMIZERS)}")
    dtype = str(take("model.optim.grad_sync_dtype") or "fp32").removeprefix("torch.")
    dtypes = {"bfloat16": "bf16", "float32": "fp32", "bf16": "bf16", "fp32": "fp32", "32": "fp32"}
    if dtype in dtypes:
        put["precision.grad_reduce_dtype"] = dtypes[dtype]
    else:
        found.add("model.optim.grad_sync_dtype", dtype, DECIDE, "a recipe has bf16 and fp32")
    betas = take("model.optim.betas", list)
    if betas is not None and len(betas) == 2:
        put |= dict(zip(("optimizer.beta1", "optimizer.beta2"), betas, strict=True))
    elif betas is not None:
        found.add("model.optim.betas", betas, UNREAD, "two numbers")
    schedules = {there: here for here, there in SCHEDULES.items()}
    schedule = take("model.optim.sched.name", str)
    if schedule in schedules:
        put["optimizer.lr_schedule"] = schedules[schedule]
    elif schedule is not None:
        found.add("model.optim.sched.name", schedule, DECIDE, f"a recipe has {', '.join(schedules)}")
    held, steps = take("model.optim.sched.constant_steps", int), found.fields.get("train.steps")
    if held and schedules.get(schedule or "") == "cosine":
        if steps is not None and held < steps:
            put["optimizer.decay_steps"] = steps - held
        else:
            reason = "the decay ends so many steps before the run, whose length is not known: set optimizer.decay_steps"
            found.add("model.optim.sched.constant_steps", held, DECIDE, reason)


def _resources(found: Imported, take: Any, flat: Mapping[str, Any]) -> None:
    """GPUs; the time limit is the job's, else the trainer's own."""
    put = found.fields
    nodes, per_node = take("trainer.num_nodes", int), take("trainer.devices", int)
    if nodes and per_node and per_node > 0:
        put["resources.gpus"] = nodes * per_node
    keys = ("run.time_limit", "trainer.max_time", "exp_manager.max_time_per_run")
    limits = [key for key in keys if flat.get(key) is not None and take(key, str)]
    for key in limits:
        text = str(flat[key])
        seconds = slurm_seconds(text) if key == "run.time_limit" else _lightning_seconds(text)
        if not seconds:
            found.add(key, text, UNREAD, "a time limit: set resources.time_limit")
        elif "resources.time_limit" not in put:
            put["resources.time_limit"] = written_duration(seconds)
        else:
            hours = written_duration(seconds)
            reason = f"the program ends itself after {hours}; ours does so shortly before resources.time_limit"
            found.add(key, text, HARMLESS, reason)


def _lightning_seconds(text: str) -> int | None:
    """``DD:HH:MM:SS``."""
    match = re.fullmatch(r"(\d+):(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = map(int, match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _of_task(found: Imported, take: Any, task: str, flat: Mapping[str, Any]) -> None:
    """Length, validation, data and first weights: other keys for every task."""
    put = found.fields
    home = "trainer" if task == "cpt" else f"trainer.{task}"
    put["optimizer.clip_grad"] = float(take(f"{home}.gradient_clip_val", NUMBER) or 0)
    every, steps = take(f"{home}.val_check_interval"), take(f"{home}.limit_val_batches")
    for name, value, path in (
        ("val_check_interval", every, "train.val_every_steps"),
        ("limit_val_batches", steps, "train.val_steps"),
    ):
        if isinstance(value, int):
            put[path] = value
        elif f"{home}.{name}" in flat and isinstance(value, float):
            found.add(f"{home}.{name}", value, HARMLESS, f"a share, of validation only: set {path}")
    saved = take(f"{home}.save_interval") or take("exp_manager.checkpoint_callback_params.every_n_train_steps") or every
    if isinstance(saved, int):
        put["checkpoint.every_steps"] = saved
    source = take("pretrained_checkpoint.restore_from_path") or take("model.restore_from_path")
    if source:
        put["checkpoint.from"], put["checkpoint.load"] = source, ["weights"]
    if task == "cpt":
        length = take("trainer.max_steps", int)
        if length is not None and length > 0:
            put["train.steps"] = length
        elif length is not None:
            found.add("trainer.max_steps", length, UNREAD, "a pretraining needs a number of steps: set train.steps")
        if (logged := take("trainer.log_every_n_steps", int)) is not None:
            put["train.log_every_steps"] = logged
        prefix = take("model.data.data_prefix", list) or take("model.data.data_prefix.train", list)
        if prefix is not None:
            put["data.blend"] = _blend(prefix)
            if len(prefix) > 1 and not any(map(_weight, prefix)):
                found.add("model.data.data_prefix", prefix, DECIDE, "sources without weights")
        if split := take("model.data.splits_string"):
            put["data.split"] = split
        return
    most = take(f"{home}.max_steps")
    put |= {"train.steps": most} if isinstance(most, int) and most > 0 else {"train.epochs": take(f"{home}.max_epochs")}
    if task == "sft":
        if take("model.answer_only_loss") is False and not take("model.data.chat"):
            reason = "NeMo's loss then counts prompts too; a recipe's counts answers"
            found.add("model.answer_only_loss", False, DECIDE, reason)
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
