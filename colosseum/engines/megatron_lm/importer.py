"""Arguments of Megatron-LM's pretrain_gpt.py, alone or inside a job script -> a recipe's data.

The script is read, never run (``script.py``). Options that are left out have Megatron-LM's defaults, as there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from colosseum.engines.foreign_options import megatron_options
from colosseum.engines.importing import UNREAD, Finding, Imported, direct, finding
from colosseum.engines.megatron_lm.script import is_plain, options
from colosseum.errors import Fault, RefusedInput

LAUNCHER = {"--nproc_per_node", "--nnodes", "--node_rank", "--master_addr", "--master_port", "--nproc-per-node"}
NUMBERS = {
    "--num-layers": "model.num_layers",
    "--hidden-size": "model.hidden_size",
    "--num-attention-heads": "model.num_attention_heads",
    "--ffn-hidden-size": "model.ffn_hidden_size",
    "--kv-channels": "model.kv_channels",
    "--make-vocab-size-divisible-by": "model.make_vocab_size_divisible_by",
    "--rotary-base": "model.rope_base",
    "--max-position-embeddings": "model.max_position_embeddings",
    "--seq-length": "batch.seq_length",
    "--micro-batch-size": "batch.mbs",
    "--global-batch-size": "batch.gbs",
    "--tensor-model-parallel-size": "parallelism.tp",
    "--pipeline-model-parallel-size": "parallelism.pp",
    "--context-parallel-size": "parallelism.cp",
    "--decoder-first-pipeline-num-layers": "parallelism.first_stage_layers",
    "--decoder-last-pipeline-num-layers": "parallelism.last_stage_layers",
    "--microbatch-group-size-per-virtual-pipeline-stage": "parallelism.microbatch_group_size_per_vp_stage",
    "--recompute-num-layers": "recompute.num_layers",
    "--fp8-margin": "precision.fp8_margin",
    "--fp8-interval": "precision.fp8_interval",
    "--fp8-amax-history-len": "precision.fp8_amax_history_len",
    "--num-layers-at-start-in-bf16": "precision.bf16_layers.first",
    "--num-layers-at-end-in-bf16": "precision.bf16_layers.last",
    "--lr-warmup-iters": "optimizer.warmup_steps",
    "--train-iters": "train.steps",
    "--eval-interval": "train.val_every_steps",
    "--eval-iters": "train.val_steps",
    "--log-interval": "train.log_every_steps",
    "--seed": "train.seed",
    "--wgrad-deferral-limit": "overlap.wgrad_deferral_limit",
    "--save-interval": "checkpoint.every_steps",
    "--save-retain-interval": "checkpoint.keep_every",
}
RATES = {
    "--norm-epsilon": "model.layernorm_epsilon",
    "--rotary-percent": "model.rotary_percent",
    "--hidden-dropout": "model.hidden_dropout",
    "--attention-dropout": "model.attention_dropout",
    "--init-method-std": "model.init_method_std",
    "--lr": "optimizer.lr",
    "--min-lr": "optimizer.min_lr",
    "--weight-decay": "optimizer.weight_decay",
    "--adam-beta1": "optimizer.beta1",
    "--adam-beta2": "optimizer.beta2",
    "--adam-eps": "optimizer.eps",
    "--clip-grad": "optimizer.clip_grad",
}
WORDS = {
    "--normalization": "model.normalization",
    "--position-embedding-type": "model.position_embedding_type",
    "--recompute-method": "recompute.method",
    "--fp8-amax-compute-algo": "precision.fp8_amax_compute_algo",
    "--lr-decay-style": "optimizer.lr_schedule",
    "--split": "data.split",
    "--data-cache-path": "data.cache_dir",
    "--tp-comm-overlap-cfg": "overlap.tp_comm_cfg",
    "--ckpt-format": "checkpoint.format",
}
SWITCHES = {
    **direct("megatron-lm", ("model.layernorm_zero_centered_gamma", "parallelism.sequence_parallel")),
    **direct("megatron-lm", ("model.add_qkv_bias", "model.qk_layernorm")),
    **direct("megatron-lm", ("parallelism.account_for_embedding_in_pipeline_split", "precision.fp8_params")),
    **direct("megatron-lm", ("parallelism.account_for_loss_in_pipeline_split", "train.deterministic")),
    **direct("megatron-lm", ("overlap.tp_comm", "overlap.grad_reduce", "overlap.param_gather", "fusion.cross_entropy")),
    **direct("megatron-lm", ("overlap.defer_embedding_wgrad_compute", "optimizer.distributed", "checkpoint.async")),
    **direct("megatron-lm", ("data.eod_mask_loss", "data.reset_position_ids", "data.reset_attention_mask")),
}
NEGATIVES = {
    "--disable-bias-linear": "model.add_bias_linear",
    "--untie-embeddings-and-output-weights": "model.tied_embeddings",
    "--no-fp8-wgrad": "precision.fp8_wgrad",
    "--no-rope-fusion": "fusion.rope",
    "--no-gradient-accumulation-fusion": "fusion.gradient_accumulation",
}
SILENT = {
    *("--bf16", "--fp16", "--use-mcore-models", "--transformer-impl", "--optimizer", "--lr-decay-iters", "--save"),
    *("--group-query-attention", "--first-last-layers-bf16", "--use-rope-scaling", "--tp-comm-bootstrap-backend"),
    *("--no-bias-gelu-fusion", "--no-bias-swiglu-fusion", "--log-throughput", "--exit-signal-handler", "--manual-gc"),
    *("--manual-gc-interval", "--tensorboard-dir", "--no-create-attention-mask-in-dataloader", "--load", "--ckpt-step"),
    *("--distributed-timeout-minutes", "--cross-entropy-fusion-impl", "--num-workers", "--distributed-backend"),
    *("--use-flash-attn", "--attention-backend", "--attention-softmax-in-fp32"),
}
"""Said by the engine itself, or by another field."""


def from_text(text: str, name: str) -> Imported:
    """The script or argument list of a file called ``name``.

    Raises:
        RefusedInput: it holds no option.
    """
    if not options(text):
        raise RefusedInput([Fault(path="FILE", value=name, rule="holds no option (--name value)")])
    return read(text)


def read(text: str) -> Imported:
    """All options of a file, in its order."""
    given = options(text)
    plain = {option: values for option, values in given.items() if all(map(is_plain, values))}
    found = Imported("megatron-lm")
    known = megatron_options()
    used = _fields(found, plain) | SILENT
    found.fields |= _gpus(text)
    for option, values in given.items():
        written = " ".join(values)
        if option not in used and option not in LAUNCHER:
            found.findings.append(finding(option, written, known, len(found.findings)))
        elif option not in SILENT and (option not in plain or _is_no_number(option, values)):
            found.findings.append(Finding(key=option, value=written, kind=UNREAD))
    return found


def _is_no_number(option: str, values: list[str]) -> bool:
    if not values or option not in {*NUMBERS, *RATES}:
        return False
    return (_integer if option in NUMBERS else _rate)(values[0]) is None


def _gpus(text: str) -> dict[str, Any]:
    """GPUs of a job script's #SBATCH lines, where it says nodes and GPUs or tasks a node."""

    def number(pattern: str) -> int | None:
        match = re.search(rf"^#SBATCH\s+(?:{pattern})[= ](?:gpu:(?:\w+:)?)?(\d+)\b", text, re.MULTILINE)
        return int(match[1]) if match else None

    nodes, each = number("--nodes|-N"), number("--gpus-per-node|--gres|--ntasks-per-node")
    return {} if not nodes or not each else {"resources.gpus": nodes * each, "resources.gpus_per_node": each}


def _fields(found: Imported, given: Mapping[str, list[str]]) -> set[str]:
    put = found.fields
    known = megatron_options()

    def value(option: str) -> str | None:
        text = given[option][0] if given.get(option) else known[option]["default"] if option in known else ""
        return text or None

    put |= {"name": "imported", "engine": "megatron-lm", "task.kind": "cpt"}
    for names, convert in ((NUMBERS, _integer), (RATES, _rate), (WORDS, str)):
        for option, path in names.items():
            if (text := value(option)) is not None and (converted := convert(text)) is not None:
                put[path] = converted
    put |= {path: option in given for option, path in SWITCHES.items()}
    put |= {path: option not in given for option, path in NEGATIVES.items()}
    special = _special(put, given, value)
    return special | set(NUMBERS) | set(RATES) | set(WORDS) | set(SWITCHES) | set(NEGATIVES)


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _rate(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _special(put: dict[str, Any], given: Mapping[str, list[str]], value: Any) -> set[str]:
    """Values that are written otherwise on the two sides; the options that were read."""
    gated = "--swiglu" in given
    put["model.activation_func"] = "silu" if gated else "squared_relu" if "--squared-relu" in given else "gelu"
    put["model.gated_linear_unit"] = gated
    groups = _integer(value("--num-query-groups") or "")
    put["model.num_query_groups"] = groups if "--group-query-attention" in given else None
    if "--use-rotary-position-embeddings" in given:
        put["model.position_embedding_type"] = "rope"
    put["model.rope_scaling"] = _rate(value("--rope-scaling-factor") or "") if "--use-rope-scaling" in given else None
    put["parallelism.vpp"] = _chunks(put, given)
    put["recompute.granularity"] = (given.get("--recompute-granularity") or ["none"])[0]
    if "--recompute-activations" in given:
        put["recompute.granularity"] = "selective"
    if modules := given.get("--recompute-modules"):
        put["recompute.modules"] = modules
    put["precision.dtype"] = "bf16" if "--bf16" in given else "fp32"
    put["precision.fp8"] = (value("--fp8-recipe") or "delayed") if "--fp8-format" in given else "none"
    if put["precision.fp8"] == "none":  # its details are the schema's defaults
        for option in ("--fp8-margin", "--fp8-interval", "--fp8-amax-history-len"):
            put.pop(NUMBERS[option], None)
        put.pop(WORDS["--fp8-amax-compute-algo"], None)
    if "--first-last-layers-bf16" not in given:
        put.pop(NUMBERS["--num-layers-at-start-in-bf16"], None)
        put.pop(NUMBERS["--num-layers-at-end-in-bf16"], None)
    put["precision.fp8_format"] = (given.get("--fp8-format") or ["hybrid"])[0]
    put["precision.grad_reduce_dtype"] = "bf16" if "--grad-reduce-in-bf16" in given else "fp32"
    put["precision.moments_dtype"] = "bf16" if given.get("--exp-avg-dtype") == ["bf16"] else "fp32"
    interleaved = put["parallelism.vpp"] > 1
    put["overlap.p2p"] = interleaved and "--no-overlap-p2p-communication" not in given
    put["overlap.batch_p2p"] = not put["overlap.p2p"]
    put["stability.mode"] = "off" if "--no-check-for-nan-in-loss-and-grad" in given else "act"
    _by_samples(put, given)
    _data(put, given)
    if first := given.get("--pretrained-checkpoint"):
        put["checkpoint.from"], put["checkpoint.load"] = first[0], ["weights"]
    return {
        *("--swiglu", "--squared-relu", "--num-query-groups", "--rope-scaling-factor", "--recompute-granularity"),
        *("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank", "--recompute-modules"),
        *("--recompute-activations", "--fp8-recipe", "--fp8-format", "--grad-reduce-in-bf16", "--exp-avg-dtype"),
        *("--accumulate-allreduce-grads-in-fp32", "--exp-avg-sq-dtype", "--use-precision-aware-optimizer"),
        *("--no-overlap-p2p-communication", "--no-check-for-nan-in-loss-and-grad", "--data-path", "--vocab-size"),
        *("--tokenizer-type", "--tokenizer-model", "--pretrained-checkpoint", "--train-samples"),
        *("--lr-warmup-samples", "--use-rotary-position-embeddings"),
    }


def _by_samples(put: dict[str, Any], given: Mapping[str, list[str]]) -> None:
    """Lengths in samples as whole steps (Megatron-LM: train_samples // global_batch_size)."""
    gbs = put.get("batch.gbs")
    for option, path in (("--train-samples", "train.steps"), ("--lr-warmup-samples", "optimizer.warmup_steps")):
        samples = _integer((given.get(option) or [""])[0])
        if samples is not None and gbs:
            put[path] = samples // gbs


def _chunks(put: Mapping[str, Any], given: Mapping[str, list[str]]) -> int:
    """Model chunks a pipeline rank, of either of the two options that say it."""
    if stages := given.get("--num-virtual-stages-per-pipeline-rank"):
        return _integer(stages[0]) or 1
    each = _integer((given.get("--num-layers-per-virtual-pipeline-stage") or [""])[0])
    layers, pp = put.get("model.num_layers"), put.get("parallelism.pp", 1)
    return max(1, layers // pp // each) if each and layers else 1


def _data(put: dict[str, Any], given: Mapping[str, list[str]]) -> None:
    words = given.get("--data-path", [])
    if words and _rate(words[0]) is None:
        put["data.blend"] = [{"path": path, "weight": 1.0} for path in words]
    elif words:
        pairs = zip(words[::2], words[1::2], strict=False)
        put["data.blend"] = [{"path": path, "weight": _rate(weight) or 1.0} for weight, path in pairs]
    kind = (given.get("--tokenizer-type") or [""])[0]
    model = next(iter(given.get("--tokenizer-model", ())), None)
    if (size := _integer((given.get("--vocab-size") or [""])[0])) is not None:
        put["model.vocab_size"] = size + (kind == "NullTokenizer")
    if kind == "NullTokenizer":
        put["tokenizer.kind"] = "null"
    elif "SentencePiece" in kind or kind == "Llama2Tokenizer":
        put["tokenizer.kind"], put["tokenizer.path"] = "sentencepiece", model
    elif kind == "HuggingFaceTokenizer" and model is not None:
        put["tokenizer.kind"], put["tokenizer.path"] = "tokenizer_json", f"{model}/tokenizer.json"
