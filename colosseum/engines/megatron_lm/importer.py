"""Arguments of Megatron-LM's pretrain_gpt.py, alone or inside a job script -> a recipe's data.

The script is read, never run (``script``). Options that are left out have Megatron-LM's defaults, as there, also those
that its ``validate_args`` works out. Every option becomes a field or a finding (``treatment_megatron_lm.tsv``).
"""

from __future__ import annotations

from collections.abc import Mapping

from colosseum.engines.foreign_options import megatron_options, treatments
from colosseum.engines.importing import UNREAD, Imported, direct, finding
from colosseum.engines.megatron_lm.bash_values import is_plain, shown
from colosseum.engines.megatron_lm.given import Given
from colosseum.engines.megatron_lm.job import resources
from colosseum.engines.megatron_lm.lengths import lengths
from colosseum.engines.megatron_lm.script import Program, program
from colosseum.errors import Fault, RefusedInput

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
    "--fp8-format": "precision.fp8_format",
    "--split": "data.split",
    "--data-cache-path": "data.cache_dir",
    "--tp-comm-overlap-cfg": "overlap.tp_comm_cfg",
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
NEEDS = {
    **dict.fromkeys(("--fp8-margin", "--fp8-interval", "--fp8-amax-history-len", "--fp8-recipe"), "--fp8-format"),
    **dict.fromkeys(("--fp8-amax-compute-algo", "--no-fp8-wgrad", "--fp8-param-gather"), "--fp8-format"),
    **dict.fromkeys(("--num-layers-at-start-in-bf16", "--num-layers-at-end-in-bf16"), "--first-last-layers-bf16"),
    **dict.fromkeys(("--recompute-method", "--recompute-num-layers", "--recompute-modules"), "--recompute-granularity"),
    **dict.fromkeys(("--exp-avg-dtype", "--exp-avg-sq-dtype"), "--use-precision-aware-optimizer"),
    "--first-last-layers-bf16": "--fp8-format",
    "--num-query-groups": "--group-query-attention",
    "--rope-scaling-factor": "--use-rope-scaling",
    "--wgrad-deferral-limit": "--defer-embedding-wgrad-compute",
    "--tp-comm-overlap-cfg": "--tp-comm-overlap",
    "--grad-reduce-in-bf16": "--bf16",
    "--eval-iters": "--eval-interval",
    "--save-retain-interval": "--save-interval",
}
"""Options without an effect where another one is not given."""


def from_text(text: str, name: str) -> Imported:
    """The script or argument list of a file called ``name``.

    Raises:
        RefusedInput: it holds no option.
    """
    if not program(text).options:
        raise RefusedInput([Fault(path="FILE", value=name, rule="holds no option (--name value)")])
    return read(text)


def read(text: str) -> Imported:
    """All options of a file, in its order."""
    command = program(text)
    found = Imported("megatron-lm")
    given = Given(found, command.options)
    resources(found, text, command.launcher)
    _fields(found, given)
    for option, values in command.options.items():
        if option in NEEDS and not given.flag(NEEDS[option]):
            given.used.add(option)
            given.harmless(option, f"has no effect without {NEEDS[option]}")
        if option not in given.used:
            _untaken(found, option, values)
    _script(found, command)
    return found


def _untaken(found: Imported, option: str, values: list[str]) -> None:
    """An option that no field takes; silent where it sets the default."""
    written = " ".join(map(shown, values))
    known = megatron_options()
    if not (values and option in known and written == known[option]["default"]):
        table = treatments("megatron_lm")
        found.findings.append(finding(option, written, table, known, len(found.findings)))


def _script(found: Imported, command: Program) -> None:
    """What the script leaves open about its own command."""
    for word in command.stray:
        reason = "may hold options" if not is_plain(word) else "belongs to no option"
        found.add(shown(word), "", UNREAD, reason)
    for doubt in command.doubts:
        found.add("if", doubt, UNREAD, "only a run decides this condition; read as if it held")
    for problem in command.problems:
        found.add("FILE", "", UNREAD, problem)


def _fields(found: Imported, given: Given) -> None:
    put = found.fields
    put |= {"name": "imported", "engine": "megatron-lm", "task.kind": "cpt"}
    for names, take in ((NUMBERS, given.integer), (RATES, given.rate), (WORDS, given.text)):
        for option, path in names.items():
            if (option not in NEEDS or given.flag(NEEDS[option])) and (value := take(option)) is not None:
                put[path] = value
    put |= {path: given.flag(option) for option, path in SWITCHES.items()}
    put |= {path: not given.flag(option) for option, path in NEGATIVES.items()}
    _architecture(found, given)
    _layout(found, given)
    _precision(found, given)
    lengths(found, given)
    _start(found, given)
    _data(found, given)


def _architecture(found: Imported, given: Given) -> None:
    put, gated = found.fields, given.flag("--swiglu")
    put["model.gated_linear_unit"] = gated
    put["model.activation_func"] = "silu" if gated else "squared_relu" if given.flag("--squared-relu") else "gelu"
    hidden = put.get("model.hidden_size")
    if gated and hidden and "--ffn-hidden-size" not in given.words:
        put["model.ffn_hidden_size"] = int(4 * hidden * 2 / 3 / 64) * 64  # validate_args
    grouped = given.flag("--group-query-attention")
    put["model.num_query_groups"] = given.integer("--num-query-groups") if grouped else None
    if given.flag("--use-rotary-position-embeddings"):
        if put.get("model.position_embedding_type") == "rope":
            given.harmless("--use-rotary-position-embeddings", "--position-embedding-type says so too")
        put["model.position_embedding_type"] = "rope"
    kind = put.get("model.position_embedding_type")
    if kind not in (None, "rope", "learned_absolute"):
        given.refuse("--position-embedding-type", "another position embedding")
        del put["model.position_embedding_type"]
    put["fusion.rope"] &= kind == "rope"
    put["model.rope_scaling"] = None
    if given.flag("--use-rope-scaling"):
        put["model.rope_scaling"] = given.rate("--rope-scaling-factor")
    if (factor := given.rate("--rotary-seq-len-interpolation-factor")) is not None:
        put["model.rope_scaling"], put["model.rope_scaling_type"] = factor, "linear"


def _layout(found: Imported, given: Given) -> None:
    put = found.fields
    if put.get("parallelism.tp") == 1:
        put["parallelism.sequence_parallel"] = False  # validate_args
    put["parallelism.vpp"] = _chunks(put, given)
    if put["parallelism.vpp"] is None:
        del put["parallelism.vpp"]
    put["recompute.granularity"] = given.text("--recompute-granularity") or "none"
    if given.flag("--recompute-activations"):
        put["recompute.granularity"] = "selective"
    if modules := given.words.get("--recompute-modules"):
        given.used.add("--recompute-modules")
        put["recompute.modules"] = modules
        if others := set(modules) - {"core_attn", "layernorm", "mlp"}:
            del put["recompute.modules"]
            given.decide("--recompute-modules", f"a recipe recomputes core_attn, layernorm, mlp, not {sorted(others)}")
    interleaved = put.get("parallelism.vpp", 1) > 1
    put["overlap.p2p"] = not given.flag("--no-overlap-p2p-communication") and interleaved
    put["overlap.batch_p2p"] = not put["overlap.p2p"]
    if not interleaved:
        for option in ("--no-overlap-p2p-communication", "--microbatch-group-size-per-virtual-pipeline-stage"):
            if option in given.words:
                given.harmless(option, "has no effect without virtual pipeline stages")
                put.pop(NUMBERS.get(option, ""), None)


def _chunks(put: Mapping[str, object], given: Given) -> int | None:
    """Model chunks a pipeline rank, of either of the two options that say it; None = unread."""
    option = "--num-virtual-stages-per-pipeline-rank"
    if option in given.words:
        return given.integer(option)
    option = "--num-layers-per-virtual-pipeline-stage"
    if option not in given.words:
        return 1
    each = given.integer(option)
    layers, pp = put.get("model.num_layers"), put.get("parallelism.pp")
    if each is None or not isinstance(layers, int) or not isinstance(pp, int):
        given.unread(option, "needs --num-layers and --pipeline-model-parallel-size")
        return None
    if pp < 1 or layers % pp:
        rule = f"{layers} layers do not divide into {pp} pipeline stages"
        raise RefusedInput([Fault(path=option, value=each, rule=rule)])
    stage = layers // pp
    if each < 1 or stage % each:
        legal = tuple(n for n in range(1, stage + 1) if stage % n == 0)
        rule = f"{layers} layers on {pp} stages are {stage} a stage; this must divide them"
        raise RefusedInput([Fault(path=option, value=each, rule=rule, nearest=legal)])
    return stage // each


def _precision(found: Imported, given: Given) -> None:
    put = found.fields
    if given.flag("--fp16"):
        given.used.discard("--fp16")  # the table says what is to be decided
    else:
        put["precision.dtype"] = "bf16" if given.flag("--bf16") else "fp32"
    put["precision.fp8"] = "none"
    if given.flag("--fp8-format"):
        put["precision.fp8"] = given.text("--fp8-recipe")
        if put["precision.fp8"] not in ("delayed", "tensorwise", "blockwise"):
            del put["precision.fp8"]
            given.decide("--fp8-recipe", "a recipe has delayed, tensorwise and blockwise scaling")
    else:  # its details are the schema's defaults
        given.flag("--fp8-recipe")
        for path in ("fp8_params", "fp8_wgrad"):
            put.pop(f"precision.{path}", None)
    put["precision.grad_reduce_dtype"] = "bf16" if given.flag("--grad-reduce-in-bf16") else "fp32"
    aware = given.flag("--use-precision-aware-optimizer")
    moments = {given.text("--exp-avg-dtype"), given.text("--exp-avg-sq-dtype")} if aware else {"fp32"}
    if moments <= {"fp32"} or moments <= {"bf16"}:
        put["precision.moments_dtype"] = moments.pop()
    else:
        for option in given.words.keys() & {"--exp-avg-dtype", "--exp-avg-sq-dtype"}:
            given.decide(option, "a recipe has both moments in fp32, or both in bf16")
    if aware and put.get("precision.moments_dtype") == "fp32":
        given.harmless("--use-precision-aware-optimizer", "both moments stay in FP32")
    put["stability.mode"] = "off" if given.flag("--no-check-for-nan-in-loss-and-grad") else "act"
    if given.text("--optimizer") != "adam":
        given.decide("--optimizer", "a recipe has adam")
    if "--ckpt-format" in given.words and given.text("--ckpt-format") != "torch_dist":
        given.harmless("--ckpt-format", "a recipe's checkpoints are torch_dist")


def _start(found: Imported, given: Given) -> None:
    """First weights. ``--load`` with the folder of ``--save`` resumes the run itself."""
    put = found.fields
    first = given.text("--pretrained-checkpoint")
    if "--load" in given.words:
        load = given.text("--load")
        if load is not None and load == given.text("--save"):
            given.harmless("--load", "the folder of --save: the run resumes itself")
            for option in ("--finetune", "--no-load-optim", "--no-load-rng"):
                if given.flag(option):
                    given.harmless(option, "of the run's own checkpoint")
        elif load is not None and first is None and given.flag("--finetune"):
            first = load
            for option in ("--no-load-optim", "--no-load-rng"):
                if given.flag(option):
                    given.harmless(option, "--finetune loads weights alone")
        elif load is not None:
            given.decide("--load", "goes on from this checkpoint's step, with its optimizer: set checkpoint.from")
    if first is not None:
        put["checkpoint.from"], put["checkpoint.load"] = first, ["weights"]


def _data(found: Imported, given: Given) -> None:
    put = found.fields
    words = given.words.get("--data-path", [])
    given.used.add("--data-path")
    if not all(map(is_plain, words)):
        given.unread("--data-path")
    elif len(words) == 1:
        put["data.blend"] = [{"path": words[0], "weight": 1.0}]
    elif words:
        weights = [given.as_rate(word) for word in words[::2]]
        if len(words) % 2 or None in weights:
            given.decide("--data-path", "sources without weights: Megatron-LM samples them by their size")
            put["data.blend"] = [{"path": path, "weight": 1.0} for path in words]
        else:
            pairs = [(weight, path) for weight, path in zip(weights, words[1::2], strict=True) if weight]
            put["data.blend"] = [{"path": path, "weight": weight} for weight, path in pairs]
    if words and "--split" not in given.words:
        put["data.split"] = "969,30,1"  # validate_args
    if (split := put.get("data.split")) is not None:
        put["data.split"] = str(split).replace(" ", "")
    _tokenizer(found, given)


def _tokenizer(found: Imported, given: Given) -> None:
    put = found.fields
    kind = given.text("--tokenizer-type")
    size = given.integer("--vocab-size")
    if size is not None:
        put["model.vocab_size"] = size + (kind == "NullTokenizer")
    model = given.text("--tokenizer-model")
    if kind == "NullTokenizer":
        put["tokenizer.kind"] = "null"
        if model is not None:
            given.harmless("--tokenizer-model", "the data are token ids")
    elif kind is not None and ("SentencePiece" in kind or kind == "Llama2Tokenizer"):
        put["tokenizer.kind"], put["tokenizer.path"] = "sentencepiece", model
    elif kind == "HuggingFaceTokenizer" and model is not None:
        put["tokenizer.kind"], put["tokenizer.path"] = "tokenizer_json", f"{model}/tokenizer.json"
    else:
        if kind is not None:
            given.decide("--tokenizer-type", "tokenizer.path takes a tokenizer.json or a SentencePiece model")
        if model is not None:
            given.decide("--tokenizer-model", "set tokenizer.kind and tokenizer.path")
