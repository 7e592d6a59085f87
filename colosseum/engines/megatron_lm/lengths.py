"""How long Megatron-LM trains and how its learning rate goes: in steps or in samples, never in both (validate_args)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colosseum.engines.importing import MISSING, Imported
from colosseum.engines.megatron_lm.given import Given
from colosseum.errors import Fault, RefusedInput

IN_STEPS = ("--lr-decay-iters", "--lr-warmup-iters")
IN_SAMPLES = ("--lr-decay-samples", "--lr-warmup-samples")
SCHEDULES = {"constant": "constant", "linear": "linear", "cosine": "cosine", "WSD": "wsd"}


def lengths(found: Imported, given: Given) -> None:
    """Fills ``train.steps``, the schedule and ``batch.gbs``.

    Raises:
        RefusedInput: steps and samples are mixed.
    """
    put = found.fields
    _global_batch(found, given)
    by_samples = "--train-samples" in given.words
    _refuse_mixed(given, by_samples)
    gbs = put.get("batch.gbs")
    if by_samples:
        steps = _in_steps(given, "--train-samples", gbs)
        put.pop("train.steps", None)
        if steps is not None:
            put["train.steps"] = steps
    _schedule(found, given, by_samples)
    if not given.flag("--eval-interval"):
        put["train.val_steps"] = 0  # Megatron-LM then validates at no step
    elif (given.integer("--eval-interval") or 0) < 1:
        put.pop("train.val_every_steps", None)
        put["train.val_steps"] = 0
    for option, field in (("--lr", "optimizer.lr"), ("--train-iters", "train.steps")):
        if field not in put and option not in given.words and not (by_samples and field == "train.steps"):
            found.add(option, "", MISSING, f"set {field}")


def _refuse_mixed(given: Given, by_samples: bool) -> None:
    wrong = [option for option in (IN_STEPS if by_samples else IN_SAMPLES) if given.words.get(option, ["0"]) != ["0"]]
    if by_samples and "--train-iters" in given.words:
        wrong.append("--train-iters")
    length = "--train-samples" if by_samples else "--train-iters"
    if wrong and length in given.words:
        rule = f"cannot be combined with {length}: Megatron-LM refuses a mixture of steps and samples"
        raise RefusedInput([Fault(path=option, value=" ".join(given.words[option]), rule=rule) for option in wrong])
    warmups = [
        option for option in ("--lr-warmup-iters", "--lr-warmup-samples") if given.words.get(option, ["0"]) != ["0"]
    ]
    if warmups and "--lr-warmup-fraction" in given.words:
        rule = f"cannot be combined with {warmups[0]}: Megatron-LM refuses two warm-ups"
        value = " ".join(given.words["--lr-warmup-fraction"])
        raise RefusedInput([Fault(path="--lr-warmup-fraction", value=value, rule=rule)])


def _global_batch(found: Imported, given: Given) -> None:
    """Without ``--global-batch-size``: one micro-batch per data-parallel rank."""
    put = found.fields
    if "--global-batch-size" in given.words:
        return
    sizes = [put.get(f"parallelism.{name}") for name in ("tp", "pp", "cp")]
    sizes += [put.get("resources.gpus"), put.get("batch.mbs")]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    if len(known) < len(sizes):
        found.add("--global-batch-size", "", MISSING, "one micro-batch per data-parallel rank: set batch.gbs")
        return
    tp, pp, cp, gpus, mbs = known
    put["batch.gbs"] = max(1, gpus // (tp * pp * cp)) * mbs


def _in_steps(given: Given, option: str, gbs: int | None) -> int | None:
    """Samples as whole steps: train_samples // global_batch_size."""
    samples = given.integer(option)
    if samples is None:
        return None
    if not gbs:
        given.unread(option, "needs --global-batch-size")
        return None
    return samples // gbs


def _schedule(found: Imported, given: Given, by_samples: bool) -> None:
    put, unit = found.fields, "samples" if by_samples else "iters"
    style = given.text("--lr-decay-style")
    if style in SCHEDULES:
        put["optimizer.lr_schedule"] = SCHEDULES[style]
    elif style is not None:
        given.decide("--lr-decay-style", f"a recipe has {', '.join(SCHEDULES)}")
    steps = put.get("train.steps")
    decay = _length(given, f"--lr-decay-{unit}", put)
    if decay is not None and style == "constant":
        given.harmless(f"--lr-decay-{unit}", "has no effect with --lr-decay-style constant")
    elif decay is not None and decay != steps:
        put["optimizer.decay_steps"] = decay
    if style == "WSD":
        put["optimizer.wsd_decay"] = given.text("--lr-wsd-decay-style")
        if (wsd := _length(given, f"--lr-wsd-decay-{unit}", put)) is not None:
            put["optimizer.wsd_decay_steps"] = wsd
    else:
        for option in ("--lr-wsd-decay-style", "--lr-wsd-decay-iters", "--lr-wsd-decay-samples"):
            if given.flag(option):
                given.harmless(option, "has no effect without --lr-decay-style WSD")
    put.pop("optimizer.warmup_steps", None)
    if "--lr-warmup-fraction" in given.words:
        share, end = given.rate("--lr-warmup-fraction"), decay or steps
        if share is not None and end:
            put["optimizer.warmup_steps"] = round(share * end)
        elif share is not None:
            put["optimizer.warmup_fraction"] = share
    elif by_samples and "--lr-warmup-samples" not in given.words:
        put["optimizer.warmup_steps"] = 0
    else:
        warmup = _length(given, "--lr-warmup-samples", put) if by_samples else given.integer("--lr-warmup-iters")
        put |= {} if warmup is None else {"optimizer.warmup_steps": warmup}


def _length(given: Given, option: str, put: Mapping[str, Any]) -> int | None:
    """An option's length in steps; None where it is not given, or not read."""
    if option not in given.words:
        return None
    return _in_steps(given, option, put.get("batch.gbs")) if option.endswith("samples") else given.integer(option)
