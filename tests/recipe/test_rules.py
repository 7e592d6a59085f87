"""Each rule with a recipe that breaks it: which field is blamed, in what words, and what would be legal."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import pytest

from colosseum.errors import Fault, RefusedInput
from colosseum.recipe import rules
from colosseum.recipe.load import load
from colosseum.recipe.rules_base import Facts, Finding, Rule

CPU, EXPAND, FP8, SFT, DPO = "debug/cpt-4k-bf16", "355b/cpt-16k-expand", "355b/cpt-fp8", "355b/sft", "355b/dpo"
ANY = None
"""Nearest values not spelt out: they are many or none."""

OLD = "model.original_max_position_embeddings"
LINEAR = "model.rope_scaling=4.0 model.rope_scaling_type=linear"
YARN = f"model.rotary_percent=1.0 model.rope_scaling=4.0 model.rope_scaling_type=yarn {OLD}=4096"
# recipe, what is changed, the field at fault, words of the rule, nearest values
CASES = [
    # Transformer Engine's Adam for FP8 weights
    (FP8, "precision.moments_dtype=bf16", "precision.moments_dtype", "must be fp32 with FP8 weights", ["fp32"]),
    (FP8, "precision.moments_dtype=bf16", "precision.fp8_params", "must be false with", [False]),
    # the schedule
    (CPU, "optimizer.warmup_fraction=0.5", "optimizer.warmup_fraction", "not both", [None]),
    (CPU, "optimizer.decay_steps=10", "optimizer.warmup_steps", "less than the 10 steps of the decay", [1, 0]),
    (CPU, "optimizer.lr_schedule=constant optimizer.decay_steps=50", "optimizer.decay_steps", "no effect", [None]),
    (CPU, "optimizer.lr_schedule=wsd", "optimizer.wsd_decay_steps", "must be given", ANY),
    (CPU, "optimizer.wsd_decay_steps=5", "optimizer.wsd_decay_steps", "no effect without", [None]),
    (
        CPU,
        "optimizer.lr_schedule=wsd optimizer.wsd_decay_steps=95 train.steps=100",
        "optimizer.wsd_decay_steps",
        "at most the 90 steps after the warm-up",
        [90],
    ),
    # layout
    (EXPAND, "resources.gpus=3072", "resources.gpus", "dp would be 9.6", [2880, 2240, 1920]),
    (EXPAND, "resources.gpus=2881", "resources.gpus", "dp would be 9.00313", [2880, 2240, 1920]),
    # What the batch must be is unknown until tp is mended: that gbs is wrong too does not speak against 8.
    (EXPAND, "parallelism.tp=7 batch.gbs=1261", "parallelism.tp", "num_attention_heads = 96", [8, 4, 2]),
    (
        SFT,
        "resources.gpus=1500 parallelism.pp=10 parallelism.cp=1",
        "resources.gpus",
        "80 GPUs per replica",
        [1600, 1120, 800],
    ),
    (CPU, "resources.gpus=12", "resources.gpus", "multiple of gpus_per_node = 8", [2, 1, 8]),
    (EXPAND, "batch.gbs=1000", "batch.gbs", "dp * mbs = 9 * 1", [990, 1080, 900]),
    (EXPAND, "model.num_layers=96", "parallelism.pp", "must divide model.num_layers = 96", ANY),
    (EXPAND, "parallelism.vpp=4", "parallelism.vpp", "the 10 layers of a pipeline rank", [5, 2, 10]),
    (
        EXPAND,
        "parallelism.first_stage_layers=9",
        "parallelism.first_stage_layers",
        "9 other pipeline ranks",
        [10],
    ),
    (
        SFT,
        "parallelism.first_stage_layers=6 parallelism.last_stage_layers=7 parallelism.pp=10 parallelism.cp=1",
        "parallelism.first_stage_layers",
        "8",
        ANY,
    ),
    (CPU, "parallelism.first_stage_layers=2", "parallelism.first_stage_layers", "without pipeline", [None]),
    (
        SFT,
        "parallelism.first_stage_layers=10 parallelism.account_for_loss_in_pipeline_split=true parallelism.pp=10 "
        "parallelism.cp=1",
        "parallelism.account_for_loss_in_pipeline_split",
        "must be false when first_stage_layers",
        [False],
    ),
    (
        SFT,
        "parallelism.account_for_loss_in_pipeline_split=true parallelism.pp=10 parallelism.cp=1",
        "parallelism.pp",
        "+ 1 for embedding and loss",
        ANY,
    ),
    (CPU, "parallelism.vpp=2", "parallelism.vpp", "without pipeline", [1]),
    (
        SFT,
        "parallelism.vpp=2 parallelism.pp=10 parallelism.cp=1",
        "parallelism.vpp",
        "there are 4: set vpp 1 or batch.gbs 350",
        [1],
    ),
    (
        EXPAND,
        "parallelism.microbatch_group_size_per_vp_stage=15",
        "parallelism.microbatch_group_size_per_vp_stage",
        "pp = 10 to 140",
        [14, 16, 13],
    ),
    (CPU, "model.num_query_groups=3", "model.num_query_groups", "must divide num_attention_heads = 4", [2, 4, 1]),
    (CPU, "model.hidden_size=130 model.kv_channels=null", "model.hidden_size", "set kv_channels", [128, 132, 116]),
    ("generic", "parallelism.tp=3 resources.gpus=3", "parallelism.tp", "num_attention_heads = 32", ANY),
    ("generic", "parallelism.tp=8 model.num_query_groups=1", "", "", []),
    (
        "generic",
        "parallelism.tp=6 resources.gpus=6 batch.gbs=6 model.num_attention_heads=36 model.hidden_size=4608 "
        "model.num_query_groups=4 model.ffn_hidden_size=12288 batch.seq_length=6144",
        "parallelism.tp",
        "divide or be a multiple of num_query_groups = 4",
        ANY,
    ),
    (
        "generic",
        "parallelism.tp=8 model.ffn_hidden_size=14300",
        "model.ffn_hidden_size",
        "tp = 8",
        [14296, 14304, 14288],
    ),
    (CPU, "parallelism.sequence_parallel=true", "parallelism.sequence_parallel", "tp = 1", [False]),
    (EXPAND, "batch.seq_length=16400", "batch.seq_length", "2 * cp = 8 and of cp * tp = 32", [16384, 16416, 16352]),
    (
        CPU,
        "model.position_embedding_type=learned_absolute model.max_position_embeddings=128",
        "model.max_position_embeddings",
        "at least batch.seq_length = 256",
        [256, None],
    ),
    (
        CPU,
        "model.rotary_percent=0.1",
        "model.rotary_percent",
        "even number of the 32 channels",
        [0.125, 0.0625, 0.1875],
    ),
    (CPU, "model.rope_scaling_type=linear", "model.rope_scaling", "linear needs a factor", [2.0, 4.0]),
    (CPU, f"{OLD}=4096", OLD, "null without model.rope_scaling", [None]),
    (CPU, f"model.rope_scaling=8.0 {OLD}=4096", OLD, "with one value only", [None, 8192]),
    (CPU, f"{LINEAR} {OLD}=4096", OLD, "divides every position", [None]),
    (CPU, f"{YARN} {OLD}=null", OLD, "trained with before", [4096, 8192, 32768]),
    (CPU, f"{YARN} model.rope_scaling=0.5", "model.rope_scaling", "at least 1", [1.0, 4.0]),
    (CPU, f"{YARN} model.rotary_percent=0.5", "model.rotary_percent", "all channels", [1.0]),
    ("generic", f"{YARN} fusion.rope=true", "fusion.rope", "attention factor", [False]),
    (
        CPU,
        "recompute.granularity=full recompute.num_layers=1",
        "recompute.method",
        "needs a method",
        ["uniform", "block"],
    ),
    (CPU, "recompute.granularity=full recompute.method=block", "recompute.num_layers", "needs num_layers", [1]),
    (CPU, "recompute.method=block", "recompute.method", "null with granularity none", [None]),
    (
        CPU,
        "recompute={granularity: full, method: uniform, num_layers: 3}",
        "recompute.num_layers",
        "must divide the 4 layers",
        [2, 4, 1],
    ),
    (CPU, "recompute={granularity: full, method: block, num_layers: 5}", "recompute.num_layers", "at most the 4", [4]),
    # precision, optimizer, overlap, fusion
    (FP8, "hardware=a100-80g", "precision.fp8", "a100-80g has no FP8", ANY),
    (FP8, "hardware=l40s precision.fp8=blockwise", "precision.fp8", "capability 9.0, and hardware l40s has 8.9", ANY),
    (
        FP8,
        "precision.fp8=blockwise batch.seq_length=16896",
        "batch.seq_length",
        "of 128 * tp * cp = 4096 with sequence parallelism",
        [16384, 20480, 12288],
    ),
    (FP8, "precision.dtype=fp32", "precision.dtype", "must be bf16 with FP8", ["bf16"]),
    (EXPAND, "precision.fp8_params=true", "precision.fp8_params", "needs precision.fp8", [False]),
    (EXPAND, "precision.bf16_layers.first=1", "precision.bf16_layers.first", "without FP8", [0]),
    (FP8, "precision.bf16_layers.first=1", "precision.bf16_layers.first", "delayed scaling; tensorwise allows it", [0]),
    (FP8, "precision.fp8=tensorwise precision.bf16_layers.last=11", "precision.bf16_layers.last", "at most 10", [10]),
    (
        FP8,
        "recompute={granularity: selective, modules: [layernorm, mlp]}",
        "recompute.modules",
        "must not include layernorm with delayed",
        [["mlp"]],
    ),
    (FP8, "model.ffn_hidden_size=73736", "model.ffn_hidden_size", "16 * tp = 128", [73728, 73856, 73600]),
    (
        "generic",
        "precision=fp8-delayed batch.seq_length=4100",
        "batch.seq_length",
        "multiple of 16 * cp = 16 in FP8",
        [4096, 4112, 4080],
    ),
    (
        FP8,
        "batch.seq_length=16416",
        "batch.seq_length",
        "16 * cp = 64 in FP8, and mbs * seq_length of 8 * tp * cp = 256",
        [16384, 16640, 16128],
    ),
    (CPU, "precision.grad_reduce_dtype=bf16", "precision.grad_reduce_dtype", "fp32 with dtype fp32", ["fp32", "auto"]),
    (
        "debug-8b/sft",
        "optimizer.distributed=auto",
        "optimizer.distributed",
        "must be true with precision.moments_dtype bf16",
        [True],
    ),
    (CPU, "overlap.param_gather=true", "overlap.param_gather", "needs the distributed optimizer", [False, "auto"]),
    (EXPAND, "overlap.grad_reduce=false", "overlap.param_gather", "needs overlap.grad_reduce", [False]),
    (CPU, "overlap.tp_comm=true hardware=h100-sxm", "overlap.tp_comm", "tp >= 2", [False, "auto"]),
    (EXPAND, "parallelism.sequence_parallel=false", "overlap.tp_comm", "needs sequence parallelism", [False, "auto"]),
    (SFT, "overlap.p2p=true overlap.batch_p2p=false", "overlap.p2p", "vpp > 1", [False, "auto"]),
    (EXPAND, "overlap.batch_p2p=true", "overlap.batch_p2p", "must be false when overlap.p2p is on", [False, "auto"]),
    (
        "generic",
        "parallelism.pp=2 parallelism.vpp=2 overlap.p2p=false",
        "overlap.p2p",
        "two pipeline ranks",
        [True, "auto"],
    ),
    (
        "generic",
        "overlap.defer_embedding_wgrad_compute=true",
        "overlap.defer_embedding_wgrad_compute",
        "pp > 1",
        [False],
    ),
    (
        EXPAND,
        "fusion.gradient_accumulation=false",
        "overlap.defer_embedding_wgrad_compute",
        "needs fusion.gradient_accumulation",
        [False],
    ),
    (EXPAND, "train.deterministic=true", "fusion.cross_entropy", "false when train.deterministic", [False]),
    ("generic", "model.position_embedding_type=learned_absolute", "fusion.rope", "type rope", [False]),
    (CPU, "fusion.rope=true", "fusion.rope", "CUDA kernel", [False]),
    (CPU, "resources.vboost=true", "resources.vboost", "on a CPU", [False]),
    (
        CPU,
        "parallelism.pp=2 parallelism.vpp=2 resources.gpus=2 overlap.p2p=false",
        "overlap.p2p",
        "losses are wrong otherwise",
        [True, "auto"],
    ),
    # length, data, checkpoints
    (CPU, "train.tokens=1000000", "train.tokens", "exactly one of", [None]),
    (CPU, "~train.steps", "train.steps", "exactly one of", []),
    (CPU, "~train.steps train.epochs=1", "train.epochs", "cpt uses train.steps or train.tokens", [None]),
    (SFT, "~data.train ~data.train_samples", "train.epochs", "needs data.train or", [None]),
    (EXPAND, "train.tokens=1000", "train.tokens", "at least one step", [1260 * 16384]),
    (CPU, "train.steps=10", "optimizer.warmup_steps", "less than the 10 steps", [1, 0]),
    (CPU, "optimizer.min_lr=0.1", "optimizer.min_lr", "at most optimizer.lr = 0.002", [0.002, 0.0]),
    (CPU, "data.train=x.jsonl", "data.train", "cpt reads data.blend", [None]),
    (SFT, "data.blend=[{path: x, weight: 1}]", "data.blend", "sft reads data.train", [[]]),
    (SFT, "data.reset_position_ids=true", "data.reset_position_ids", "token streams of cpt", [False]),
    (CPU, "data.split=99;1", "data.split", "three numbers", ["99,1,0"]),
    (CPU, "data.split=100,0,0", "train.val_steps", "has no validation share", [0]),
    (SFT, "~data.validation", "train.val_steps", "without data.validation", [0]),
    (
        SFT,
        "data.train_samples=100 parallelism.pp=10 parallelism.cp=1",
        "batch.gbs",
        "at most data.train_samples = 100",
        [70, 35],
    ),
    (DPO, "tokenizer.path=null", "tokenizer.path", "dpo reads text", []),
    (DPO, "tokenizer=token-ids", "tokenizer.kind", "dpo reads text", []),
    (DPO, "task.lora.targets=[]", "task.lora.targets", "must name a layer", ANY),
    (DPO, "task.lora.targets=[linear_qkv,linear_qkv]", "task.lora.targets", "once", [["linear_qkv"]]),
    (DPO, "task.logprob_mbs=3 parallelism.pp=10 parallelism.cp=1", "task.logprob_mbs", "gbs / dp = 4 pairs", [2, 4, 1]),
    (CPU, "checkpoint.from=run:x@latest", "checkpoint.from", "run:RUN[@STEP]", ["run:x"]),
    (CPU, 'checkpoint.from="stage:a b"', "checkpoint.from", "stage:NAME", ["stage:ab"]),
    (EXPAND, "checkpoint.load=[optimizer]", "checkpoint.load", "must include weights", [["weights", "optimizer"]]),
    (CPU, "checkpoint.load=[weights, weights]", "checkpoint.load", "each part once", [["weights"]]),
    (CPU, "checkpoint.keep_every=150", "checkpoint.keep_every", "multiple of", [100, 200, 300]),
]


def broken(name: str, words: str) -> list[Fault]:
    """The faults of a shipped recipe with changes (``key=value`` words, a space before each key)."""
    overrides = [word for word in re.split(r" (?=~?[a-z_0-9.]+(?:=|$| ))", words) if word]
    try:
        load(name.replace("355b/", "colosseum-355b/"), overrides)
    except RefusedInput as refused:
        return list(refused.faults)
    return []


@pytest.mark.parametrize(("name", "words", "path", "text", "nearest"), CASES, ids=[f"{c[2]}:{c[1]}" for c in CASES])
def test_a_broken_rule(name: str, words: str, path: str, text: str, nearest: list[object] | None) -> None:
    found = {fault.path: fault for fault in broken(name, words) if text in fault.rule}
    if not path:
        assert not found
        return
    assert path in found, broken(name, words)
    if nearest is not ANY:
        assert list(found[path].nearest) == nearest
    assert found[path].where


def test_every_rule_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: set[str] = set()

    def recording(rule: Rule) -> Rule:
        @functools.wraps(rule)
        def record(facts: Facts) -> Iterator[Finding]:
            for finding in rule(facts):
                tried.add(rule.__name__)
                yield finding

        return record

    monkeypatch.setattr(rules, "RULES", tuple(recording(rule) for rule in rules.RULES))
    for name, words, *_ in CASES:
        broken(name, words)
    assert {rule.__name__ for rule in rules.RULES} - tried == set()


def test_all_faults_of_a_recipe_come_at_once() -> None:
    words = "resources.gpus=3072 train.deterministic=true optimizer.min_lr=1 overlap.batch_p2p=true"
    assert {f.path for f in broken(EXPAND, words)} == {
        "resources.gpus",
        "fusion.cross_entropy",
        "optimizer.min_lr",
        "overlap.batch_p2p",
    }


def test_the_planner_may_fill_what_says_auto() -> None:
    words = [f"parallelism.{n}=auto" for n in ("tp", "pp", "vpp", "cp")] + [
        "batch.mbs=auto",
        "recompute.granularity=auto",
    ]
    assert broken(EXPAND, " ".join(words)) == []
