"""A recipe of any size -> the same recipe for a few CPU processes, with an account of every change. Pure.

What a rehearsal is for stays: each parallel dimension, the schedule, precision, recomputation, data path, checkpoints
and the shape of the learning-rate schedule. What costs time shrinks: width, depth, vocabulary, batch, length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, Literal

from colosseum.recipe import derived
from colosseum.recipe.base import DEFAULT_ENGINE
from colosseum.recipe.cluster import Cluster, Hardware
from colosseum.recipe.rules_base import Facts
from colosseum.recipe.schema import Model, Recipe

Dimension = Literal["tp", "pp", "cp", "dp"]
Verdict = Literal["kept", "scaled", "dropped"]

HEAD_DIM = 16
SEQ_LENGTH = 64
ROW_LENGTH = 192
"""Bytes that the longest of the demo's chats and pairs fit in."""
STEPS = 8
SAVE_AT = STEPS // 2
SEQUENCES = 8
"""Sequences a step over mbs: every split of 8 ranks into dp and pp divides it."""
VOCAB = 512
"""256 bytes and a document's end, padded to what tp 1 to 4 pad to alike: one checkpoint serves them all."""
SOURCES = 3
LR = 1e-3
"""High enough to see a tiny model learn in a few steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How one part of the recipe was changed."""

    what: str
    before: str
    after: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """Two recipes that differ in their layout only, and how they came about."""

    recipe: Recipe
    other_layout: Recipe
    """For resuming: the dimensions that ``recipe`` had no ranks for, and no pipeline."""
    decisions: tuple[Decision, ...]


def shrink(recipe: Recipe, ranks: int, *, hardware: Hardware, cluster: Cluster) -> Shrunk:
    """The recipe for at most ``ranks`` CPU processes.

    Args:
        recipe: with its layout resolved (no ``auto`` in parallelism).
        ranks: 2 to 8.
        hardware: the CPU.
        cluster: this machine.

    Returns:
        Recipes without data paths: ``data.blend`` holds placeholders named ``source-0``, ``source-1``, …, an alignment
        recipe names ``KIND-train.jsonl``, ``KIND-validation.jsonl`` and ``tokenizer.json``.
    """
    par = recipe.parallelism
    sizes = {"tp": int(par.tp), "pp": int(par.pp), "cp": int(par.cp)}
    sizes["dp"] = recipe.resources.gpus // prod(sizes.values())
    first = _spread_ranks(("tp", "pp", "cp", "dp"), sizes, ranks)
    second = _second_layout(first, sizes, ranks)
    data = _sections(recipe, first, max(first["tp"], second["tp"]))
    data["hardware"], data["cluster"] = hardware.model_dump(mode="json"), cluster.model_dump(mode="json")
    other = {**data, "parallelism": _parallelism(recipe, second)}
    for section, layout in ((data, first), (other, second)):
        section["resources"] = {"gpus": prod(layout.values()), "gpus_per_node": 8, "time_limit": "30m"}
    small = Recipe.from_data(data)
    return Shrunk(
        recipe=small,
        other_layout=Recipe.from_data(other),
        decisions=tuple(_decisions(recipe, small, sizes, first, second)),
    )


# --- the layout --------------------------------------------------------------------------------------------------


def _spread_ranks(order: Iterable[str], sizes: dict[str, int], ranks: int) -> dict[str, int]:
    """Doubles each dimension that is above 1, in turn and again, while ranks last and the recipe has as many."""
    layout = dict.fromkeys(("tp", "pp", "cp", "dp"), 1)
    order = [name for name in order if sizes[name] > 1]
    while grown := [n for n in order if layout[n] * 2 <= sizes[n] and prod(layout.values()) * 2 <= ranks]:
        for name in [n for n in order if layout[n] == min(layout[g] for g in grown) and n in grown]:
            if prod(layout.values()) * 2 <= ranks:
                layout[name] *= 2
    return layout


def _second_layout(first: dict[str, int], sizes: dict[str, int], ranks: int) -> dict[str, int]:
    """The dimensions that the first has not come first; never a pipeline; always another layout."""
    flat = ("cp", "dp", "tp")
    order = sorted(flat, key=lambda name: first[name] > 1)
    for layout in (_spread_ranks(order, sizes, ranks), _spread_ranks(("dp",), {**sizes, "dp": ranks}, ranks)):
        if layout != first and prod(layout.values()) > 1:
            return layout
    return dict.fromkeys(("tp", "pp", "cp", "dp"), 1)


def _parallelism(recipe: Recipe, layout: dict[str, int]) -> dict[str, Any]:
    par, pipelined = recipe.parallelism, layout["pp"] > 1
    vpp = 2 if pipelined and int(par.vpp) > 1 else 1
    uneven = {name: vpp for name in ("first_stage_layers", "last_stage_layers") if pipelined and getattr(par, name)}
    return {
        **{name: layout[name] for name in ("tp", "pp", "cp")},
        "vpp": vpp,
        "sequence_parallel": par.sequence_parallel if layout["tp"] > 1 else False,
        "account_for_embedding_in_pipeline_split": pipelined and par.account_for_embedding_in_pipeline_split,
        "account_for_loss_in_pipeline_split": pipelined and par.account_for_loss_in_pipeline_split,
        **uneven,
    }


def _num_layers(par: dict[str, Any]) -> int:
    """One layer a model chunk; two without a pipeline, with shorter ends, or where embedding or loss take a place."""
    extras = par["account_for_embedding_in_pipeline_split"] + par["account_for_loss_in_pipeline_split"]
    ends = [par[name] for name in ("first_stage_layers", "last_stage_layers") if name in par]
    chunk = 2 if extras or ends or par["pp"] == 1 else 1
    return int((par["pp"] - len(ends)) * par["vpp"] * chunk + sum(ends) - extras)


# --- the rest ----------------------------------------------------------------------------------------------------


def _sections(recipe: Recipe, layout: dict[str, int], tp: int) -> dict[str, Any]:
    """Every section but resources, hardware and cluster."""
    full = recipe.as_data()
    parallelism = _parallelism(recipe, layout)
    mbs = min(int(recipe.batch.mbs), 2)
    return {
        "name": f"{recipe.name[:48]}-rehearsal",
        "engine": DEFAULT_ENGINE,
        "task": _task(full["task"]),
        "model": {**full["model"], **_model(recipe.model, tp), "num_layers": _num_layers(parallelism)},
        **_inputs(recipe, full["data"]),
        "batch": {"gbs": SEQUENCES * mbs, "mbs": mbs, "seq_length": ROW_LENGTH if recipe.alignment else SEQ_LENGTH},
        "parallelism": parallelism,
        "recompute": _recompute(full["recompute"]),
        "precision": {**full["precision"], **_precision(recipe)},
        "optimizer": {**full["optimizer"], **_rates(recipe)},
        "train": {
            "steps": STEPS,
            "val_every_steps": SAVE_AT,
            "val_steps": 1,
            "log_every_steps": 1,
            "seed": recipe.train.seed,
            "deterministic": recipe.train.deterministic,
        },
        "overlap": _overlap(full["overlap"]),
        "fusion": dict.fromkeys(full["fusion"], False),
        "checkpoint": {
            "format": recipe.checkpoint.format,
            "every_steps": SAVE_AT,
            "async": recipe.checkpoint.async_save,
            "from": "none",
        },
        "stability": full["stability"],
    }


def _model(model: Model, tp: int) -> dict[str, Any]:
    """Width for ``tp`` ranks: two query heads a KV head where KV heads are shared, two heads a rank where not."""
    shared = model.query_groups < model.num_attention_heads
    groups = max(2, tp) if shared else 2 * tp
    heads = 2 * groups if shared else groups
    hidden = heads * HEAD_DIM
    own_width = model.num_attention_heads * model.head_dim != model.hidden_size
    turned = int(HEAD_DIM * model.rotary_percent)
    return {
        "num_attention_heads": heads,
        "num_query_groups": groups,
        "hidden_size": hidden,
        "ffn_hidden_size": max(1, round(model.ffn / model.hidden_size * hidden / 16)) * 16,
        "kv_channels": 2 * HEAD_DIM if own_width else None,
        "vocab_size": VOCAB,
        "make_vocab_size_divisible_by": 128,
        "max_position_embeddings": None,
        "rotary_percent": model.rotary_percent if turned >= 2 and turned % 2 == 0 else 0.5,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def _task(task: dict[str, Any]) -> dict[str, Any]:
    """Alignment reads the demo's chats and pairs, written with the recipe's control strings."""
    own = {"template": "chat_tokens", "format": "chat", "reference_from": None, "logprob_mbs": None}
    return {**task, **{key: value for key, value in own.items() if key in task}}


def _inputs(recipe: Recipe, data: dict[str, Any]) -> dict[str, Any]:
    if recipe.alignment is None:
        own = {"blend": _blend(data["blend"]), "cache_dir": None, "split": "90,10,0"}
        return {"tokenizer": {"kind": "null"}, "data": {**data, **own}}
    kind = recipe.task.kind
    files = {"train": f"{kind}-train.jsonl", "validation": f"{kind}-validation.jsonl"}
    tokenizer = {"kind": "tokenizer_json", "path": "tokenizer.json", "eod": recipe.tokenizer.eod}
    return {"tokenizer": tokenizer, "data": {**data, **files, "cache_dir": None, "train_samples": None}}


def _blend(blend: list[dict[str, Any]]) -> list[dict[str, Any]]:
    weights = [entry["weight"] for entry in blend[:SOURCES]] or [1.0]
    return [{"path": f"source-{i}", "weight": weight} for i, weight in enumerate(weights)]


def _recompute(recompute: dict[str, Any]) -> dict[str, Any]:
    return {**recompute, "num_layers": 1 if recompute["granularity"] == "full" else None}


def _precision(recipe: Recipe) -> dict[str, Any]:
    return {
        "fp8": "none",
        "fp8_params": False,
        "bf16_layers": {"first": 0, "last": 0},
        "moments_dtype": "fp32",
        "grad_reduce_dtype": recipe.precision.grad_reduce_dtype if recipe.precision.dtype == "bf16" else "fp32",
    }


def _rates(recipe: Recipe) -> dict[str, Any]:
    """The schedule's shape: the share of warm-up and the ratio of the two rates."""
    opt, total = recipe.optimizer, derived.total_steps(recipe)
    share = derived.warmup_steps(recipe) / total if total else 0.0
    decay = max(2, round(STEPS * opt.decay_steps / total)) if opt.decay_steps and total else None
    warmup = min((decay or STEPS) - 1, ceil(share * STEPS))
    wsd = round(STEPS * opt.wsd_decay_steps / total) if opt.wsd_decay_steps and total else 1
    return {
        "lr": LR,
        "min_lr": LR * (opt.min_lr / opt.lr) if opt.lr else 0.0,
        "warmup_steps": warmup,
        "warmup_fraction": None,
        "decay_steps": decay,
        "wsd_decay_steps": min(max(1, wsd), (decay or STEPS) - warmup) if opt.lr_schedule == "wsd" else None,
        # As engine mcore saves it: one rank's is sharded too, so that a layout of several can load it.
        "distributed": bool(Facts.of(recipe).sharded_optimizer),
    }


def _overlap(overlap: dict[str, Any]) -> dict[str, Any]:
    return {
        **overlap,
        "tp_comm": False,
        "tp_comm_cfg": None,
        "p2p": "auto",
        "batch_p2p": "auto",
        "defer_embedding_wgrad_compute": False,
        "wgrad_deferral_limit": 0,
    }


# --- the account -------------------------------------------------------------------------------------------------


def _decisions(
    recipe: Recipe, small: Recipe, sizes: dict[str, int], first: dict[str, int], second: dict[str, int]
) -> Iterator[Decision]:
    yield from _layout_decisions(recipe, small, sizes, first, second)
    yield from _size_decisions(recipe, small)
    yield from _policy_decisions(recipe, small)
    yield from _cuda_decisions(recipe)


def _decide(what: str, before: Any, after: Any, why: str = "") -> Decision:
    verdict: Verdict = "kept" if before == after else "scaled"
    return Decision(what=what, before=_text(before), after=_text(after), verdict=verdict, why=why)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _layout_decisions(
    recipe: Recipe, small: Recipe, sizes: dict[str, int], first: dict[str, int], second: dict[str, int]
) -> Iterator[Decision]:
    for name in ("tp", "pp", "cp", "dp"):
        tried = max(first[name], second[name])
        if sizes[name] > 1 and tried == 1:
            yield Decision(
                what=name, before=_text(sizes[name]), after="1", verdict="dropped", why="not enough ranks: --ranks 8"
            )
        elif sizes[name] > 1:
            where = "" if first[name] == tried else "in the second layout"
            yield _decide(name, sizes[name], tried, where)
    if int(recipe.parallelism.vpp) > 1:
        yield _decide("vpp", int(recipe.parallelism.vpp), int(small.parallelism.vpp), "one layer a model chunk")
    if sizes["tp"] > 1:
        yield _decide("sequence_parallel", recipe.parallelism.sequence_parallel, small.parallelism.sequence_parallel)


def _size_decisions(recipe: Recipe, small: Recipe) -> Iterator[Decision]:
    if recipe.engine != small.engine:
        yield _decide("engine", recipe.engine, small.engine, "the runtime that runs on a CPU")
    for name in ("num_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        yield _decide(name, getattr(recipe.model, name), getattr(small.model, name))
    yield _decide("num_query_groups", recipe.model.query_groups, small.model.query_groups)
    yield _decide("ffn_hidden_size", recipe.model.ffn, small.model.ffn)
    for name in ("gbs", "mbs", "seq_length"):
        yield _decide(name, getattr(recipe.batch, name), getattr(small.batch, name))
    yield _decide("steps", derived.total_steps(recipe) or 0, STEPS)
    yield _decide("lr", recipe.optimizer.lr, LR, "a tiny model learns in a few steps")
    if recipe.alignment is not None:
        what, before, after, source = "data.train", recipe.data.train or "", "the demo's rows", "demo's rows"
    else:
        counts = (f"{len(blend)} sources" for blend in (recipe.data.blend, small.data.blend))
        what, (before, after), source = "data.blend", counts, "shipped corpus"
    yield Decision(
        what=what,
        before=before,
        after=after,
        verdict="scaled",
        why=f"bytes of the {source} through the same dataset code; the real data is not read",
    )
    for name in ("hidden_dropout", "attention_dropout"):
        if getattr(recipe.model, name):
            yield Decision(
                what=name,
                before=_text(getattr(recipe.model, name)),
                after="0",
                verdict="dropped",
                why="losses of two layouts are compared",
            )


def _policy_decisions(recipe: Recipe, small: Recipe) -> Iterator[Decision]:
    yield _decide("dtype", recipe.precision.dtype, small.precision.dtype)
    yield _decide("recompute", recipe.recompute.granularity, small.recompute.granularity)
    yield _decide("lr_schedule", recipe.optimizer.lr_schedule, small.optimizer.lr_schedule)
    yield _decide("distributed optimizer", bool(Facts.of(recipe).sharded_optimizer), small.optimizer.distributed)
    yield _decide("checkpoint.format", recipe.checkpoint.format, small.checkpoint.format)
    if recipe.precision.fp8 != "none":
        yield Decision(
            what="fp8", before=recipe.precision.fp8, after="none", verdict="dropped", why="a CPU has no FP8 GEMM"
        )
    if recipe.precision.moments_dtype != "fp32":
        yield Decision(
            what="moments_dtype", before="bf16", after="fp32", verdict="dropped", why="needs Transformer Engine"
        )


def _cuda_decisions(recipe: Recipe) -> Iterator[Decision]:
    overlap, fusion = recipe.overlap, recipe.fusion
    for name, on, why in (
        ("overlap.tp_comm", overlap.tp_comm is True, "userbuffers need CUDA"),
        ("defer_embedding_wgrad_compute", overlap.defer_embedding_wgrad_compute, "needs a fused CUDA kernel"),
        ("fusion.cross_entropy", fusion.cross_entropy, "a CUDA kernel"),
        ("fusion.rope", fusion.rope, "a CUDA kernel"),
        ("fusion.gradient_accumulation", fusion.gradient_accumulation, "a CUDA kernel"),
        ("vboost", recipe.resources.vboost, "a GPU's clock"),
    ):
        if on:
            yield Decision(what=name, before="on", after="off", verdict="dropped", why=why)
