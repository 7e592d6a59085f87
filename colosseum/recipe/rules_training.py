"""Rules of length, learning rate, data, checkpoints and the alignment tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from colosseum.recipe import derived
from colosseum.recipe.rules_base import Facts, Finding, Rule, divisors, multiples
from colosseum.recipe.source import Fresh

SHARE = re.compile(r"\d{1,9}(\.\d{1,9})?")


# --- how long ----------------------------------------------------------------------------------------------------


def one_length(facts: Facts) -> Iterator[Finding]:
    """A run has exactly one length."""
    train = facts.recipe.train
    named = [n for n in ("steps", "tokens", "epochs") if getattr(train, n) is not None]
    rule = "set exactly one of train.steps, train.tokens and train.epochs"
    if not named:
        yield Finding("train.steps", rule)
    if len(named) > 1:
        for name in named:
            yield Finding(f"train.{name}", f"{rule}; ~train.{name} removes this one", (None,))


def epochs_need_rows(facts: Facts) -> Iterator[Finding]:
    """An epoch is a pass over the rows of an SFT or DPO file; a blend of token streams has no epochs."""
    recipe = facts.recipe
    if recipe.train.epochs is None:
        return
    if recipe.alignment is None:
        yield Finding("train.epochs", "is for sft and dpo; cpt uses train.steps or train.tokens", (None,))
    elif recipe.data.train is None and recipe.data.train_samples is None:
        yield Finding("train.epochs", "needs data.train or data.train_samples", (None,))


def length_is_a_step(facts: Facts) -> Iterator[Finding]:
    """train.tokens is at least one step."""
    recipe = facts.recipe
    if facts.total_steps != 0:
        return
    if recipe.train.tokens is not None:
        step = derived.tokens_per_step(recipe)
        each = derived.sequences_per_sample(recipe)
        pair = f" * {each}" * (each > 1)
        yield Finding("train.tokens", f"must be at least one step: gbs * seq_length{pair} = {step}", (step,))


def warmup_ends(facts: Facts) -> Iterator[Finding]:
    """megatron-core's scheduler requires the warm-up to be shorter than the decay, whose end may be set."""
    opt, total = facts.recipe.optimizer, facts.total_steps
    if opt.warmup_fraction is not None and opt.warmup_steps:
        rule = "set optimizer.warmup_steps or optimizer.warmup_fraction, not both"
        yield Finding("optimizer.warmup_fraction", rule, (None,))
        return
    end = opt.decay_steps or total
    if end and derived.warmup_steps(facts.recipe) >= end:
        of = "decay" if opt.decay_steps else "run"
        name = "warmup_steps" if opt.warmup_fraction is None else "warmup_fraction"
        nearest = (end // 10, 0) if opt.warmup_fraction is None else (0.1,)
        yield Finding(f"optimizer.{name}", f"must be less than the {end} steps of the {of}", nearest)


def decay_fits_schedule(facts: Facts) -> Iterator[Finding]:
    """Lengths of the decay belong to schedules that have one."""
    opt, total = facts.recipe.optimizer, facts.total_steps
    wsd = opt.lr_schedule == "wsd"
    if opt.decay_steps is not None and opt.lr_schedule == "constant":
        yield Finding("optimizer.decay_steps", "has no effect with lr_schedule = constant", (None,))
    if wsd and opt.wsd_decay_steps is None:
        yield Finding(
            "optimizer.wsd_decay_steps", "must be given with lr_schedule = wsd", (max(1, (total or 10) // 10),)
        )
    if not wsd and opt.wsd_decay_steps is not None:
        yield Finding("optimizer.wsd_decay_steps", "has no effect without lr_schedule = wsd", (None,))
    end = opt.decay_steps or total
    room = None if not end else end - derived.warmup_steps(facts.recipe)
    if wsd and opt.wsd_decay_steps and room is not None and opt.wsd_decay_steps > room > 0:
        yield Finding("optimizer.wsd_decay_steps", f"must be at most the {room} steps after the warm-up", (room,))


def rates_fall(facts: Facts) -> Iterator[Finding]:
    """The schedule decays from lr to min_lr."""
    optimizer = facts.recipe.optimizer
    if optimizer.min_lr > optimizer.lr:
        yield Finding("optimizer.min_lr", f"must be at most optimizer.lr = {optimizer.lr:g}", (optimizer.lr, 0.0))


# --- data --------------------------------------------------------------------------------------------------------


def data_of_task(facts: Facts) -> Iterator[Finding]:
    """cpt reads a blend of token streams (may be empty for a plan), sft and dpo read JSONL files."""
    recipe = facts.recipe
    data = recipe.data
    if recipe.alignment is None:
        for name in ("train", "validation", "train_samples"):
            if getattr(data, name) is not None:
                yield Finding(f"data.{name}", "is for sft and dpo; cpt reads data.blend", (None,))
        return
    if data.blend:
        yield Finding("data.blend", f"is for cpt; {recipe.task.kind} reads data.train", ((),))
    for name in ("eod_mask_loss", "reset_position_ids", "reset_attention_mask"):
        if getattr(data, name):
            yield Finding(f"data.{name}", f"is for the token streams of cpt; {recipe.task.kind} reads rows", (False,))
    if data.train is None and data.train_samples is None:
        yield Finding("data.train", f"{recipe.task.kind} needs a JSONL file (for a plan, data.train_samples is enough)")


def split_has_shares(facts: Facts) -> Iterator[Finding]:
    """Megatron's split: shares of training, validation and test; the training share is above 0."""
    split, steps = facts.recipe.data.split, facts.recipe.train.val_steps
    parts = [part.strip() for part in split.split(",")]
    if len(parts) != 3 or not all(SHARE.fullmatch(part) for part in parts) or float(parts[0]) <= 0:
        yield Finding("data.split", "must be three numbers, the first above 0, such as 99,1,0", ("99,1,0",))
    elif facts.recipe.data.blend and steps and float(parts[1]) <= 0:
        yield Finding("train.val_steps", f"must be 0: data.split = {split} has no validation share", (0,))


def validation_has_rows(facts: Facts) -> Iterator[Finding]:
    """sft and dpo validate on data.validation."""
    recipe = facts.recipe
    if recipe.alignment and recipe.data.train and recipe.train.val_steps and recipe.data.validation is None:
        yield Finding("train.val_steps", "must be 0 without data.validation", (0,))


def rows_fill_a_step(facts: Facts) -> Iterator[Finding]:
    """The training file has at least one global batch."""
    data, gbs = facts.recipe.data, facts.recipe.batch.gbs
    if facts.recipe.alignment and data.train_samples is not None and data.train_samples < gbs:
        unit = (facts.dp or 1) * (facts.mbs or 1)
        yield Finding(
            "batch.gbs",
            f"must be at most data.train_samples = {data.train_samples}",
            multiples(data.train_samples, unit),
        )


def text_needs_tokenizer(facts: Facts) -> Iterator[Finding]:
    """sft and dpo tokenize text; a blend already holds token ids."""
    recipe = facts.recipe
    tokenizer, kind = recipe.tokenizer, recipe.task.kind
    if recipe.alignment is None:
        return
    if tokenizer.kind == "null":
        yield Finding("tokenizer.kind", f"{kind} reads text: it needs a tokenizer_json or sentencepiece file")
    elif tokenizer.path is None:
        yield Finding("tokenizer.path", f"{kind} reads text: it must name the file of a {tokenizer.kind} tokenizer")


def logprob_batches(facts: Facts) -> Iterator[Finding]:
    """The log-prob pass of DPO splits a replica's pairs into micro-batches of logprob_mbs."""
    task = facts.recipe.preference
    if task is None or task.logprob_mbs is None or facts.dp is None or facts.recipe.batch.gbs % facts.dp:
        return
    pairs = facts.recipe.batch.gbs // facts.dp
    if pairs % task.logprob_mbs:
        yield Finding(
            "task.logprob_mbs",
            f"must divide gbs / dp = {pairs} pairs per replica",
            (*divisors(pairs, task.logprob_mbs), None),
        )


def lora_has_targets(facts: Facts) -> Iterator[Finding]:
    """Adapters stand beside some layers, one beside each."""
    lora = facts.recipe.lora
    if lora is None:
        return
    once = tuple(dict.fromkeys(lora.targets))
    if not once:
        yield Finding("task.lora.targets", "must name a layer", (("linear_qkv", "linear_proj"),))
    elif len(once) < len(lora.targets):
        yield Finding("task.lora.targets", "must name each layer once", (once,))


# --- checkpoints -------------------------------------------------------------------------------------------------


def load_has_weights(facts: Facts) -> Iterator[Finding]:
    """Weights are always loaded; each part is listed once."""
    checkpoint = facts.recipe.checkpoint
    parts = tuple(dict.fromkeys(checkpoint.load))
    if len(parts) < len(checkpoint.load):
        yield Finding("checkpoint.load", "must list each part once", (parts,))
    elif checkpoint.source != Fresh() and "weights" not in parts:
        yield Finding("checkpoint.load", "must include weights", (("weights", *parts),))


def kept_steps_are_saved(facts: Facts) -> Iterator[Finding]:
    """Only steps divisible by every_steps are saved."""
    checkpoint = facts.recipe.checkpoint
    if checkpoint.keep_every is not None and checkpoint.keep_every % checkpoint.every_steps:
        yield Finding(
            "checkpoint.keep_every",
            f"must be a multiple of checkpoint.every_steps = {checkpoint.every_steps}",
            (*_few(multiples(checkpoint.keep_every, checkpoint.every_steps)), None),
        )


def _few(values: Iterator[int]) -> list[int]:
    return [value for value, _ in zip(values, range(4), strict=False)]


RULES: tuple[Rule, ...] = (
    one_length,
    epochs_need_rows,
    length_is_a_step,
    warmup_ends,
    decay_fits_schedule,
    rates_fall,
    data_of_task,
    split_has_shares,
    validation_has_rows,
    rows_fill_a_step,
    text_needs_tokenizer,
    logprob_batches,
    lora_has_targets,
    load_has_weights,
    kept_steps_are_saved,
)
