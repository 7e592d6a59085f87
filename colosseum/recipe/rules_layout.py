"""Rules of the layout: GPUs, batch, pipeline, heads, sequence, recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, lcm

from colosseum.recipe.base import AUTO
from colosseum.recipe.rules_base import Facts, Finding, Rule, divisors, multiples
from colosseum.recipe.schema import LLAMA3_OLD_CONTEXT


def gpus_fill_replicas(facts: Facts) -> Iterator[Finding]:
    """Every rank belongs to a replica: dp = gpus / (tp * pp * cp) is a whole number."""
    res = facts.recipe.resources
    if res.gpus % facts.replica == 0:
        return
    unit = facts.replica if res.gpus <= res.gpus_per_node else lcm(facts.replica, res.gpus_per_node)
    parts = f"tp * pp * cp = {facts.tp or 'auto'} * {facts.pp or 'auto'} * {facts.cp or 'auto'}"
    whole = "" if None in (facts.tp, facts.pp, facts.cp) else f": dp would be {res.gpus / facts.replica:.6g}"
    yield Finding(
        "resources.gpus",
        f"must be a multiple of {parts} ({facts.replica} GPUs per replica){whole}",
        multiples(res.gpus, unit),
    )


def gpus_fill_nodes(facts: Facts) -> Iterator[Finding]:
    """A job on more than one node uses all GPUs of each node: gpus_per_node ranks per node."""
    res = facts.recipe.resources
    if res.gpus > res.gpus_per_node and res.gpus % res.gpus_per_node:
        unit = lcm(res.gpus_per_node, facts.replica)
        one_node = (n for n in multiples(res.gpus_per_node, facts.replica) if n <= res.gpus_per_node)
        yield Finding(
            "resources.gpus",
            f"must be a multiple of gpus_per_node = {res.gpus_per_node} on more than one node",
            (*_first(multiples(res.gpus, unit), 12), *_first(one_node, 12)),
        )


def batch_fills_replicas(facts: Facts) -> Iterator[Finding]:
    """Each replica runs gbs / (dp * mbs) micro-batches, a whole number; otherwise samples would be dropped silently."""
    batch = facts.recipe.batch
    if facts.dp is None:
        return
    unit = facts.dp * (facts.mbs or 1)
    if batch.gbs % unit:
        group = facts.pp if facts.pp and (facts.vpp or 1) > 1 else 1
        yield Finding(
            "batch.gbs",
            f"must be a multiple of dp * mbs = {facts.dp} * {facts.mbs or 'auto'}",
            (*_first(multiples(batch.gbs, unit), 12), *_first(multiples(batch.gbs, unit * group), 12)),
        )


def layers_fill_stages(facts: Facts) -> Iterator[Finding]:
    """Pipeline ranks hold the same number of layers, at least one (megatron-core get_num_layers_to_build)."""
    par, layers, pp = facts.recipe.parallelism, facts.recipe.model.num_layers, facts.pp
    if pp is None or facts.stage_layers is not None:
        return
    if par.first_stage_layers is not None or par.last_stage_layers is not None:
        yield from _uneven_stages(facts)
        return
    embedding, loss = par.account_for_embedding_in_pipeline_split, par.account_for_loss_in_pipeline_split
    if AUTO in (embedding, loss):  # the planner may choose values that make the split even
        if all((layers + extra) % pp or layers + extra < pp for extra in range(3)):
            yield Finding(
                "parallelism.pp", f"must divide model.num_layers = {layers} (or 1 or 2 more)", divisors(layers, pp)
            )
        return
    extra = int(embedding) + int(loss)
    counted = f"model.num_layers = {layers}" + (f" + {extra} for embedding and loss" if extra else "")
    both = layers + 2
    rule = f"must divide {counted}"
    if extra < 2 and both % pp == 0 and both >= pp:
        names = "account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split"
        rule += f"; with parallelism.{names} the stages are even: {both} = {pp} x {both // pp}"
    yield Finding("parallelism.pp", rule, divisors(layers + extra, pp))


def _uneven_stages(facts: Facts) -> Iterator[Finding]:
    """With first/last_stage_layers the other ranks hold the same number of layers each, at least one."""
    par, layers, pp = facts.recipe.parallelism, facts.recipe.model.num_layers, facts.pp or 1
    first, last = par.first_stage_layers, par.last_stage_layers
    if pp == 1:
        for name in ("first_stage_layers", "last_stage_layers"):
            if getattr(par, name) is not None:
                yield Finding(f"parallelism.{name}", "must be null without pipeline parallelism (pp = 1)", (None,))
        return
    others = pp - (first is not None) - (last is not None)
    path = "first_stage_layers" if first is not None else "last_stage_layers"
    mine, theirs = (first, last) if first is not None else (last, first)
    room = layers - (theirs or 0)
    unit = max(1, others) * (facts.vpp or 1)
    if others:
        rule = f"must leave a multiple of {others} layers to the {others} other pipeline ranks"
        tries = (room - left for left in multiples(room - (mine or 0), unit))
    else:
        rule = f"must be {room}, the layers that remain: with pp = {pp} there are no other ranks"
        tries = (n for n in (room,))
    yield Finding(f"parallelism.{path}", rule, (n for n in tries if n > 0))


def uneven_or_accounted(facts: Facts) -> Iterator[Finding]:
    """megatron-core takes first/last_stage_layers or account_for_*_in_pipeline_split, not both."""
    par = facts.recipe.parallelism
    if par.first_stage_layers is None and par.last_stage_layers is None:
        return
    for name in ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"):
        if getattr(par, name) is True:
            yield Finding(
                f"parallelism.{name}", "must be false when first_stage_layers or last_stage_layers is set", (False,)
            )


def interleaving_needs_pipeline(facts: Facts) -> Iterator[Finding]:
    """Interleaving places several model chunks on each pipeline rank; it needs a pipeline."""
    if (facts.vpp or 1) > 1 and facts.pp == 1:
        yield Finding("parallelism.vpp", "must be 1 without pipeline parallelism (pp = 1)", (1,))


def chunks_divide_stages(facts: Facts) -> Iterator[Finding]:
    """Every pipeline rank divides its layers into vpp equal chunks (embedding and loss count if accounted for)."""
    vpp, counts = facts.vpp, _counted(facts)
    if vpp is None or vpp == 1 or facts.pp == 1 or counts is None:
        return
    if any(n % vpp for n in counts):
        shown = " and ".join(str(n) for n in sorted(set(counts)))
        yield Finding(
            "parallelism.vpp", f"must divide the {shown} layers of a pipeline rank", divisors(gcd(*counts), vpp)
        )


def _counted(facts: Facts) -> list[int] | None:
    """Layers of the first, an interior and the last rank, plus embedding and loss if they are accounted for."""
    par, stages = facts.recipe.parallelism, facts.stage_layers
    if stages is None:
        return None
    counts = list(stages)
    if facts.pp != 1:
        counts[0] += par.account_for_embedding_in_pipeline_split is True
        counts[-1] += par.account_for_loss_in_pipeline_split is True
    return counts


def microbatches_fill_interleaving(facts: Facts) -> Iterator[Finding]:
    """The interleaved schedule runs micro-batches in groups (megatron-core, pipeline_parallel/schedules.py).

    A group has pp to m micro-batches (default pp), and the last group is full or has at least pp.
    """
    par, pp, m = facts.recipe.parallelism, facts.pp, facts.microbatches
    if (facts.vpp or 1) == 1 or pp is None or pp == 1 or m is None or facts.dp is None or facts.mbs is None:
        return
    group = par.microbatch_group_size_per_vp_stage
    if _group_fits(group or pp, pp, m):
        return
    if group is not None and m >= pp:
        yield Finding(
            "parallelism.microbatch_group_size_per_vp_stage",
            f"must be from pp = {pp} to {m} (the micro-batches), and the last group must be full or at least {pp}",
            sorted((n for n in range(pp, min(m, pp + 512) + 1) if _group_fits(n, pp, m)), key=lambda n: abs(n - group)),
        )
        return
    legal = list(_first(multiples(facts.recipe.batch.gbs, facts.dp * facts.mbs * pp), 2))
    yield Finding(
        "parallelism.vpp",
        f"interleaving needs a multiple of pp = {pp} micro-batches, but there are {m}: set vpp 1"
        + (f" or batch.gbs {' or '.join(map(str, sorted(legal)))}" if legal else ""),
        (1,),
    )


def _group_fits(group: int, pp: int, m: int) -> bool:
    return pp <= group <= m and not 0 < m % group < pp


def heads_split(facts: Facts) -> Iterator[Finding]:
    """Attention heads are split over tp ranks; KV heads are split or replicated, the same number on each rank."""
    model, tp = facts.recipe.model, facts.tp
    heads, groups = model.num_attention_heads, model.query_groups
    if heads % groups:
        yield Finding("model.num_query_groups", f"must divide num_attention_heads = {heads}", divisors(heads, groups))
    if model.kv_channels is None and model.hidden_size % heads:
        yield Finding(
            "model.hidden_size",
            f"must be a multiple of num_attention_heads = {heads}, or set kv_channels",
            multiples(model.hidden_size, lcm(heads, tp or 1)),
        )
    if tp and heads % tp:
        yield Finding("parallelism.tp", f"must divide num_attention_heads = {heads}", divisors(heads, tp))
    elif tp and groups % tp and tp % groups:
        yield Finding(
            "parallelism.tp", f"must divide or be a multiple of num_query_groups = {groups}", divisors(heads, tp)
        )


def ffn_splits(facts: Facts) -> Iterator[Finding]:
    """The MLP's columns are split over tp ranks."""
    ffn, tp = facts.recipe.model.ffn, facts.tp
    if tp and ffn % tp:
        path = "model.ffn_hidden_size" if facts.recipe.model.ffn_hidden_size is not None else "parallelism.tp"
        tries = multiples(ffn, tp) if path == "model.ffn_hidden_size" else divisors(ffn, tp)
        yield Finding(path, f"the MLP's {ffn} columns must be a multiple of tp = {tp}", tries)


def _rope_scaling(facts: Facts) -> Iterator[Finding]:
    """What megatron-core's RoPE computes of each kind of scaling."""
    model, kind, old = (
        facts.recipe.model,
        facts.recipe.model.rope_scaling_type,
        "model.original_max_position_embeddings",
    )
    before = model.original_max_position_embeddings
    if model.rope_scaling is None:
        if kind != "llama3":
            yield Finding("model.rope_scaling", f"{kind} needs a factor", (2.0, 4.0))
        if before is not None:
            yield Finding(old, "must be null without model.rope_scaling", (None,))
    elif kind == "llama3" and before not in (None, LLAMA3_OLD_CONTEXT):
        rule = "megatron-core computes RoPE scaling of the kind llama3 with one value only"
        yield Finding(old, rule, (None, LLAMA3_OLD_CONTEXT))
    elif kind == "linear" and before is not None:
        yield Finding(old, "linear scaling divides every position: must be null", (None,))
    elif kind == "yarn":
        if before is None:
            yield Finding(old, "yarn needs the context that the model was trained with before", (4096, 8192, 32768))
        if model.rope_scaling < 1:
            yield Finding("model.rope_scaling", "yarn stretches: must be at least 1", (1.0, 4.0))
        if model.rotary_percent != 1.0:
            yield Finding("model.rotary_percent", "megatron-core's yarn turns all channels of a head", (1.0,))
        if facts.recipe.fusion.rope:
            yield Finding("fusion.rope", "the fused kernel leaves out yarn's attention factor", (False,))


def sequence_parallel_needs_tp(facts: Facts) -> Iterator[Finding]:
    """Sequence parallelism splits activations over the TP ranks; it needs TP (megatron-core ModelParallelConfig)."""
    if facts.recipe.parallelism.sequence_parallel is True and facts.tp == 1:
        yield Finding("parallelism.sequence_parallel", "must be false without tensor parallelism (tp = 1)", (False,))


def sequence_splits(facts: Facts) -> Iterator[Finding]:
    """CP splits a sequence into 2 * cp pieces (zigzag); sequence parallelism splits each CP rank's share by tp."""
    batch, cp, tp = facts.recipe.batch, facts.cp, facts.tp
    unit, parts = 1, []
    if cp and cp > 1:
        unit, parts = 2 * cp, [f"2 * cp = {2 * cp}"]
    if facts.sequence_parallel and tp and cp:
        unit = lcm(unit, cp * tp)
        parts.append(f"cp * tp = {cp * tp} (sequence parallelism)")
    if batch.seq_length % unit:
        rule = f"must be a multiple of {' and of '.join(parts)}"
        yield Finding("batch.seq_length", rule, multiples(batch.seq_length, unit))


def positions_reach(facts: Facts) -> Iterator[Finding]:
    """A learned position embedding has one row per position; RoPE has no table and no such limit."""
    model, seq = facts.recipe.model, facts.recipe.batch.seq_length
    if model.position_embedding_type == "learned_absolute":
        rows = model.max_position_embeddings
        if rows is not None and rows < seq:
            yield Finding("model.max_position_embeddings", f"must be at least batch.seq_length = {seq}", (seq, None))
        if model.rope_scaling is not None:
            yield Finding("model.rope_scaling", "must be null without RoPE", (None,))
        return
    yield from _rope_scaling(facts)
    turned = int(model.head_dim * model.rotary_percent) if model.rotary_percent < 1 else model.head_dim
    if turned < 2 or turned % 2:
        pairs = range(1, min(model.head_dim // 2, 4096) + 1)
        near = sorted(pairs, key=lambda k: abs(2 * k - model.head_dim * model.rotary_percent))[:6]
        yield Finding(
            "model.rotary_percent",
            f"RoPE must rotate an even number of the {model.head_dim} channels of a head, at least 2",
            (_share(2 * k, model.head_dim) for k in near),
        )


def _share(channels: int, of: int) -> float:
    """A fraction of ``of`` that ``int`` truncates to ``channels``: rounding can make the exact quotient too small."""
    exact = channels / of
    return exact if int(of * exact) == channels else (channels + 0.5) / of


def full_recompute_is_complete(facts: Facts) -> Iterator[Finding]:
    """megatron-core: full recomputation needs a method and a number of layers; other granularities allow neither."""
    rec = facts.recipe.recompute
    if rec.granularity == AUTO:
        return
    if rec.granularity == "full":
        if rec.method is None:
            yield Finding("recompute.method", "full recomputation needs a method", ("uniform", "block"))
        if rec.num_layers is None:
            yield Finding("recompute.num_layers", "full recomputation needs num_layers", (1,))
        return
    for name in ("method", "num_layers"):
        if getattr(rec, name) is not None:
            yield Finding(f"recompute.{name}", f"must be null with granularity {rec.granularity}", (None,))


def recompute_fits_chunk(facts: Facts) -> Iterator[Finding]:
    """Layers are recomputed within a model chunk: ``block``: num_layers per chunk, ``uniform``: groups of num_layers.

    megatron-core's uniform loop reads past the last layer when the last group is not full.
    """
    rec, chunks = facts.recipe.recompute, _chunks(facts)
    if rec.granularity != "full" or rec.num_layers is None or not chunks:
        return
    if rec.method == "uniform" and any(n % rec.num_layers for n in chunks):
        shown = " and ".join(map(str, sorted(chunks)))
        yield Finding(
            "recompute.num_layers",
            f"must divide the {shown} layers of a model chunk with method uniform",
            divisors(gcd(*chunks), rec.num_layers),
        )
    if rec.method == "block" and rec.num_layers > max(chunks):
        yield Finding(
            "recompute.num_layers", f"must be at most the {max(chunks)} layers of a model chunk", (max(chunks),)
        )


def _chunks(facts: Facts) -> set[int]:
    """Numbers of layers per model chunk; empty when unknown."""
    par, counts = facts.recipe.parallelism, _counted(facts)
    if counts is None or facts.vpp is None or facts.pp is None:
        return set()
    vpp = facts.vpp if facts.pp > 1 else 1
    if any(n % vpp for n in counts):
        return set()
    sizes = {n // vpp for n in counts}
    if facts.pp > 1:
        if par.account_for_embedding_in_pipeline_split is True:
            sizes.add(counts[0] // vpp - 1)
        if par.account_for_loss_in_pipeline_split is True:
            sizes.add(counts[-1] // vpp - 1)
    return {n for n in sizes if n > 0}


def _first(values: Iterator[int], count: int) -> Iterator[int]:
    for value, _ in zip(values, range(count), strict=False):
        yield value


RULES: tuple[Rule, ...] = (
    gpus_fill_replicas,
    gpus_fill_nodes,
    batch_fills_replicas,
    layers_fill_stages,
    uneven_or_accounted,
    interleaving_needs_pipeline,
    chunks_divide_stages,
    microbatches_fill_interleaving,
    heads_split,
    ffn_splits,
    sequence_parallel_needs_tp,
    sequence_splits,
    positions_reach,
    full_recompute_is_complete,
    recompute_fits_chunk,
)
