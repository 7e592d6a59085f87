"""Engine ``megatron-lm``: the argument list of NVIDIA's pretrain_gpt.py (Megatron-LM, megatron-core 0.16 to 0.19)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from colosseum.engines import megatron_checkpoints
from colosseum.engines.base import NEMO_IMAGE, About, Engine, EngineLaunch, Releases
from colosseum.engines.foreign import (
    CONTINUED,
    RUN,
    Command,
    common_faults,
    continues,
    launch,
    loads_optimizer,
    minutes,
    path_faults,
    source_folder,
    stability_notes,
    total_steps,
)
from colosseum.errors import Fault
from colosseum.planning.plan import Plan
from colosseum.recipe import derived
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import Fresh
from colosseum.rundir import RunDir
from colosseum.units import parse_duration_s

HOME = {"variable": "MEGATRON_LM", "default": "/opt/Megatron-Bridge/3rdparty/Megatron-LM"}
"""Where a NeMo container of these releases has it; a checkout elsewhere is named in the cluster file's env."""
ACTIVATIONS = {("squared_relu", False): "--squared-relu", ("silu", True): "--swiglu", ("gelu", False): None}
"""Those that the command line can say."""

_NUMBER = r"\s*(\S+) \|"
PATTERNS = {
    "train": {
        "step": r"iteration\s+(\d+)/\s*\d+ \|",
        "loss": r"lm loss:" + _NUMBER,
        "lr": r"learning rate:" + _NUMBER,
        "grad_norm": r"grad norm:" + _NUMBER,
        "step_time_s": r"elapsed time per iteration \(ms\):" + _NUMBER,
        "model_tflops_per_gpu": r"throughput per GPU \(TFLOP/s/GPU\):" + _NUMBER,
    },
    "val": {
        "step": r"validation loss at iteration (\d+) ",
        "loss": r"lm loss value:" + _NUMBER,
    },
}
"""Of the lines that training_log() and evaluate_and_print_results() print."""


class MegatronLmEngine(Engine):
    """See ``engines.base.Engine``."""

    name = "megatron-lm"
    about = About(
        title="NVIDIA's Megatron-LM, pretrain_gpt.py",
        tasks=("cpt",),
        fp8=("delayed", "tensorwise", "blockwise"),
        cp="cpt",
        releases=Releases(image=NEMO_IMAGE, first="26.02", last="26.06"),  # megatron-core 0.16 to 0.18
        image=f"docker://{NEMO_IMAGE}:26.02",
        reads="Megatron-LM's torch_dist checkpoints: weights, optimizer",
    )
    imported_as = "megatron"

    def faults(self, recipe: Recipe) -> list[Fault]:
        found = common_faults(self.name, recipe)
        kind, model, overlap = recipe.task.kind, recipe.model, recipe.overlap
        others = "nemo1 and nemo2 do" if kind == "sft" else "nemo1 does"
        found.unless(kind == "cpt", "task.kind", kind, f"pretrain_gpt.py pretrains; {others}", "cpt")
        found.unless(
            (model.activation_func, model.gated_linear_unit) in ACTIVATIONS,
            "model.activation_func",
            model.activation_func,
            f"has no option for this with gated_linear_unit {str(model.gated_linear_unit).lower()}; mcore can",
        )
        scaling, as_llama3 = model.rope_scaling, model.rope_scaling_type == "llama3"
        rule = "supports RoPE scaling llama3 only; mcore supports all kinds"
        found.unless(scaling is None or as_llama3, "model.rope_scaling_type", model.rope_scaling_type, rule, "llama3")
        rule = "scales RoPE by 8 whatever --rope-scaling-factor says (gpt_builders.py of 0.16 to 0.19)"
        found.unless(scaling in (None, 8.0) or not as_llama3, "model.rope_scaling", scaling, rule, 8.0)
        pipelined = recipe.parallelism.pp != 1
        found.unless(
            not pipelined or overlap.p2p == "auto" or overlap.batch_p2p in ("auto", not overlap.p2p),
            "overlap.batch_p2p",
            overlap.batch_p2p,
            "batches pipeline sends whenever it does not overlap them; mcore can switch both off",
            not overlap.p2p,
        )
        found.unless_loadable(recipe)
        return found.found

    def notes(self, recipe: Recipe) -> list[str]:
        checkpoint, found = recipe.checkpoint, stability_notes("Megatron-LM", recipe)
        if checkpoint.keep_last is not None:
            kept = "all checkpoints" if checkpoint.keep_every is None else "the last checkpoint and each of keep_every"
            found.append(f"Megatron-LM keeps {kept}: checkpoint.keep_last = {checkpoint.keep_last} has no option")
        if recipe.fusion.cross_entropy:
            found.append("Megatron-LM uses its own fused cross-entropy, mcore Transformer Engine's")
        if _needs_tokenizer(recipe):
            size = recipe.model.vocab_size
            found.append(
                f"Megatron-LM takes the vocabulary's size from the tokenizer: model.vocab_size = {size:,} is ignored"
            )
        return found

    def render(self, recipe: Recipe, plan: Plan) -> EngineLaunch:
        command = Command(
            engine="Megatron-LM",
            program="pretrain_gpt.py",
            home=HOME,
            image=self.about.image,
            arguments=list(arguments(recipe)),
            first=list(_first_weights(recipe)),
            patterns=PATTERNS,
            scales={"step_time_s": 1e-3},
            checkpoints={"folder": RUN.checkpoints.name, "glob": None, "pattern": None, "counts": "steps"},
            continues=continues(recipe),
            checks={"arguments": "megatron.training.arguments"},
        )
        return launch(recipe, command)

    def checkpoints(self, run: RunDir, gbs: int) -> dict[int, Path]:
        return megatron_checkpoints.up_to_tracker(run)

    def source_faults(self, recipe: Recipe, runs: Path) -> list[Fault]:
        return path_faults(recipe, megatron_checkpoints.unfinished)


def arguments(recipe: Recipe) -> Iterator[str]:
    """The words of a resolved recipe (no ``auto`` left), in the order of its sections."""
    yield from _model(recipe)
    yield from _tokenizer(recipe)
    yield from _data(recipe)
    yield from _layout(recipe)
    yield from _precision(recipe)
    yield from _optimizer(recipe)
    yield from _overlap(recipe)
    yield from _run(recipe)


def _option(name: str, value: object) -> tuple[str, ...]:
    """An option with a value; a switch when the value is a bool; nothing for None."""
    if value is None or value is False:
        return ()
    return (name,) if value is True else (name, str(value))


def _model(recipe: Recipe) -> Iterator[str]:
    model = recipe.model
    yield from ("--num-layers", str(model.num_layers), "--hidden-size", str(model.hidden_size))
    yield from ("--ffn-hidden-size", str(model.ffn), "--num-attention-heads", str(model.num_attention_heads))
    yield from ("--kv-channels", str(model.head_dim))
    if model.query_groups != model.num_attention_heads:
        yield from ("--group-query-attention", "--num-query-groups", str(model.query_groups))
    yield from _option(ACTIVATIONS[model.activation_func, model.gated_linear_unit] or "", True)
    yield from ("--normalization", model.normalization, "--norm-epsilon", repr(model.layernorm_epsilon))
    yield from _option("--apply-layernorm-1p", model.layernorm_zero_centered_gamma)
    yield from _option("--disable-bias-linear", not model.add_bias_linear)
    yield from _option("--add-qkv-bias", model.add_qkv_bias)
    yield from _option("--qk-layernorm", model.qk_layernorm)
    yield from _option("--untie-embeddings-and-output-weights", not model.tied_embeddings)
    yield from ("--position-embedding-type", model.position_embedding_type)
    if model.position_embedding_type == "rope":
        yield from ("--rotary-percent", repr(model.rotary_percent), "--rotary-base", str(model.rope_base))
    if model.rope_scaling is not None:
        yield from ("--use-rope-scaling", "--rope-scaling-factor", repr(model.rope_scaling))
    longest = max(model.max_position_embeddings or 0, recipe.batch.seq_length)
    yield from ("--max-position-embeddings", str(longest))
    yield from ("--hidden-dropout", repr(model.hidden_dropout), "--attention-dropout", repr(model.attention_dropout))
    yield from ("--init-method-std", repr(model.init_method_std))
    yield from ("--make-vocab-size-divisible-by", str(model.make_vocab_size_divisible_by))
    # As mcore: bias and activation are fused for SwiGLU alone (Megatron-LM's default), the softmax is in FP32.
    yield from ("--transformer-impl", "transformer_engine", "--no-bias-gelu-fusion")
    yield "--attention-softmax-in-fp32"


def _needs_tokenizer(recipe: Recipe) -> bool:
    """Masks go by the end of document, which only the tokenizer knows."""
    data, tokenizer = recipe.data, recipe.tokenizer
    masks = data.eod_mask_loss or data.reset_position_ids or data.reset_attention_mask
    return masks and tokenizer.kind != "null" and tokenizer.path is not None


def _tokenizer(recipe: Recipe) -> Iterator[str]:
    """Token ids need no tokenizer, only a vocabulary; its last id is NullTokenizer's end of document."""
    tokenizer = recipe.tokenizer
    if not _needs_tokenizer(recipe) or tokenizer.path is None:
        yield from ("--tokenizer-type", "NullTokenizer", "--vocab-size", str(recipe.model.vocab_size - 1))
    elif tokenizer.kind == "sentencepiece":
        yield from ("--tokenizer-type", "GPTSentencePieceTokenizer", "--tokenizer-model", tokenizer.path)
    else:  # Hugging Face's loader takes the folder
        folder = str(PurePosixPath(tokenizer.path).parent)
        yield from ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder)


def _data(recipe: Recipe) -> Iterator[str]:
    data, batch = recipe.data, recipe.batch
    if data.blend:
        yield "--data-path"
        for entry in data.blend:
            yield from (repr(entry.weight), entry.path)
    yield from ("--split", data.split, "--data-cache-path", data.cache_dir or RUN.data_cache.name)
    yield from _option("--eod-mask-loss", data.eod_mask_loss)
    yield from _option("--reset-position-ids", data.reset_position_ids)
    yield from _option("--reset-attention-mask", data.reset_attention_mask)
    # Transformer Engine's causal mask needs none made; one of 16K x 16K a sample is slow.
    yield from _option("--no-create-attention-mask-in-dataloader", not data.reset_attention_mask)
    yield from ("--seq-length", str(batch.seq_length), "--micro-batch-size", str(batch.mbs))
    yield from ("--global-batch-size", str(batch.gbs))


def _layout(recipe: Recipe) -> Iterator[str]:
    par, rec = recipe.parallelism, recipe.recompute
    yield from ("--tensor-model-parallel-size", str(par.tp), "--pipeline-model-parallel-size", str(par.pp))
    if par.vpp != 1:
        yield from ("--num-virtual-stages-per-pipeline-rank", str(par.vpp))
        yield from _option("--microbatch-group-size-per-virtual-pipeline-stage", par.microbatch_group_size_per_vp_stage)
    yield from ("--context-parallel-size", str(par.cp))
    yield from _option("--sequence-parallel", par.sequence_parallel)
    yield from _option("--decoder-first-pipeline-num-layers", par.first_stage_layers)
    yield from _option("--decoder-last-pipeline-num-layers", par.last_stage_layers)
    yield from _option("--account-for-embedding-in-pipeline-split", par.account_for_embedding_in_pipeline_split)
    yield from _option("--account-for-loss-in-pipeline-split", par.account_for_loss_in_pipeline_split)
    if rec.granularity == "selective":
        yield from ("--recompute-granularity", "selective", "--recompute-modules", *rec.modules)
    elif rec.granularity == "full":
        yield from ("--recompute-granularity", "full", "--recompute-method", str(rec.method))
        yield from ("--recompute-num-layers", str(rec.num_layers))


def _precision(recipe: Recipe) -> Iterator[str]:
    precision = recipe.precision
    if precision.dtype == "bf16":
        yield "--bf16"
        fp32 = precision.grad_reduce_dtype == "fp32"
        yield "--accumulate-allreduce-grads-in-fp32" if fp32 else "--grad-reduce-in-bf16"
    if precision.moments_dtype == "bf16":
        yield from ("--use-precision-aware-optimizer", "--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16")
    if precision.fp8 == "none":
        return
    yield from ("--fp8-format", precision.fp8_format, "--fp8-recipe", precision.fp8)
    yield from ("--fp8-margin", str(precision.fp8_margin), "--fp8-interval", str(precision.fp8_interval))
    yield from ("--fp8-amax-history-len", str(precision.fp8_amax_history_len))
    yield from ("--fp8-amax-compute-algo", precision.fp8_amax_compute_algo)
    yield from _option("--fp8-param-gather", precision.fp8_params)
    yield from _option("--no-fp8-wgrad", not precision.fp8_wgrad)
    first, last = precision.bf16_layers.first, precision.bf16_layers.last
    if first or last:
        yield from ("--first-last-layers-bf16", "--num-layers-at-start-in-bf16", str(first))
        yield from ("--num-layers-at-end-in-bf16", str(last))


def _optimizer(recipe: Recipe) -> Iterator[str]:
    opt, steps = recipe.optimizer, str(total_steps(recipe))
    yield from ("--optimizer", opt.name, "--lr", repr(opt.lr), "--min-lr", repr(opt.min_lr))
    style = "WSD" if opt.lr_schedule == "wsd" else opt.lr_schedule
    yield from ("--lr-decay-style", style, "--lr-decay-iters", str(opt.decay_steps or steps))
    if opt.wsd_decay_steps is not None:
        yield from ("--lr-wsd-decay-iters", str(opt.wsd_decay_steps), "--lr-wsd-decay-style", opt.wsd_decay)
    yield from ("--lr-warmup-iters", str(derived.warmup_steps(recipe)), "--weight-decay", repr(opt.weight_decay))
    yield from ("--adam-beta1", repr(opt.beta1), "--adam-beta2", repr(opt.beta2), "--adam-eps", repr(opt.eps))
    yield from ("--clip-grad", repr(opt.clip_grad))
    yield from _option("--use-distributed-optimizer", opt.distributed)
    yield from ("--train-iters", steps)


def _overlap(recipe: Recipe) -> Iterator[str]:
    overlap, fusion = recipe.overlap, recipe.fusion
    if overlap.tp_comm:
        yield from ("--tp-comm-overlap", "--tp-comm-bootstrap-backend", "nccl")
        yield from _option("--tp-comm-overlap-cfg", overlap.tp_comm_cfg)
    yield from _option("--no-overlap-p2p-communication", not overlap.p2p)
    yield from _option("--overlap-grad-reduce", overlap.grad_reduce)
    yield from _option("--overlap-param-gather", overlap.param_gather)
    if overlap.defer_embedding_wgrad_compute:
        yield from ("--defer-embedding-wgrad-compute", "--wgrad-deferral-limit", str(overlap.wgrad_deferral_limit))
    if fusion.cross_entropy:  # Megatron-LM's training loop calls Transformer Engine's unstable
        yield from ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", "native")
    yield from _option("--no-rope-fusion", not fusion.rope)
    yield from _option("--no-gradient-accumulation-fusion", not fusion.gradient_accumulation)


def _run(recipe: Recipe) -> Iterator[str]:
    train, checkpoint = recipe.train, recipe.checkpoint
    yield from ("--eval-interval", str(train.val_every_steps), "--eval-iters", str(train.val_steps))
    yield from ("--log-interval", str(train.log_every_steps), "--log-throughput", "--seed", str(train.seed))
    yield from _option("--deterministic-mode", train.deterministic)
    yield from _option("--no-check-for-nan-in-loss-and-grad", recipe.stability.mode == "off")
    timeout = minutes(parse_duration_s(recipe.stability.hang_timeout))
    yield from ("--distributed-timeout-minutes", str(timeout))
    yield from ("--manual-gc", "--manual-gc-interval", "100", "--exit-signal-handler")
    yield from ("--tensorboard-dir", RUN.tensorboard.name)
    folder = RUN.checkpoints.name
    yield from ("--save", folder, "--load", folder, "--save-interval", str(checkpoint.every_steps))
    yield from ("--ckpt-format", checkpoint.format)
    yield from _option("--save-retain-interval", checkpoint.keep_every)
    if checkpoint.async_save:  # without the second word 0.19 turns the first one off
        yield from ("--async-save", "--use-persistent-ckpt-worker")


def _first_weights(recipe: Recipe) -> Iterator[str]:
    """Words of the first attempt: what the run begins with. Of an option that is given twice the last counts."""
    if recipe.checkpoint.source == Fresh():
        return
    if loads_optimizer(recipe):
        yield from ("--load", CONTINUED, "--exit-on-missing-checkpoint", "--override-opt_param-scheduler")
        yield from _option("--no-load-rng", "rng" not in recipe.checkpoint.load)
        return
    folder, step = source_folder(recipe.checkpoint.source)
    path = PurePosixPath(folder)
    if path.name.startswith("iter_"):
        folder, step = str(path.parent), int(path.name.removeprefix("iter_"))
    yield from ("--pretrained-checkpoint", folder)
    yield from _option("--ckpt-step", step)
