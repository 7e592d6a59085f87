"""What the foreign engines share: the bundle's ``start.py`` and ``command.json``, and sentences of refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from colosseum.engines.base import EngineLaunch
from colosseum.errors import Fault
from colosseum.recipe import derived
from colosseum.recipe.schema import Recipe, Stability
from colosseum.recipe.source import Fresh, FromPath, FromRun, Source
from colosseum.rundir import LATEST_FILE, RunDir

RUN = RunDir(Path())
"""Paths as the ranks see them: they start inside the run folder."""
OUTCOME = RUN.attempt(0).outcome.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The instructions for ``start.py``, whose docstring explains each field."""

    engine: str
    program: str
    home: Mapping[str, str] | None
    image: str
    arguments: Sequence[str]
    patterns: Mapping[str, Mapping[str, str]]
    scales: Mapping[str, float] = field(default_factory=dict)
    first_step: int = 1
    """What the log calls the first step."""
    first: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    checkpoints: Mapping[str, str | None]
    continues: Mapping[str, Any] | None = None
    """What ``continue_from.py`` is told; None = the run loads no optimizer of another."""
    checks: Mapping[str, str | None] | None = None
    """How ``check_config.py`` asks the engine what it makes of the launch; None = it is not asked."""


def launch(recipe: Recipe, command: Command, files: Mapping[str, bytes] | None = None) -> EngineLaunch:
    """The launch of a foreign engine: its own files, the command, and the program that starts it."""
    text = {
        "engine": command.engine,
        "program": command.program,
        "home": command.home,
        "image": command.image,
        "arguments": list(command.arguments),
        "first": list(command.first),
        "env": {**_deterministic(recipe), **command.env},
        "patterns": command.patterns,
        "scales": command.scales,
        "constants": {"gbs": recipe.batch.gbs, "tokens_per_step": derived.tokens_per_step(recipe)},
        "total_steps": total_steps(recipe),
        "may_drop_steps": recipe.train.epochs or 0,
        "first_step": command.first_step,
        "stop_at_nan": recipe.stability.mode == "act",
        "checkpoints": command.checkpoints,
        "continues": command.continues,
        "checks": None if command.checks is None else {**command.checks, "ranks": recipe.resources.gpus},
        "names": {
            "attempts": RUN.attempts.name,
            "metrics": RUN.metrics.name,
            "outcome": OUTCOME,
            "checkpoints": RUN.checkpoints.name,
            "tracker": LATEST_FILE,
        },
    }
    used = {"continue_from.py": command.continues, "check_config.py": command.checks}
    programs = ["start.py", *(name for name, told in used.items() if told is not None)]
    copies = {name: resources.files("colosseum.engines").joinpath(name).read_bytes() for name in programs}
    written = {**copies, "command.json": (json.dumps(text, indent=2) + "\n").encode(), **(files or {})}
    # -I: neither the run folder nor bundle/engine/ is in Python's path (an engine's image may have no -P).
    return EngineLaunch(files=written, argv=("python", "-I", "bundle/engine/start.py"))


def _deterministic(recipe: Recipe) -> dict[str, str]:
    """megatron-core refuses deterministic mode without a fixed NCCL algorithm."""
    return {"NCCL_ALGO": "Ring"} if recipe.train.deterministic else {}


def total_steps(recipe: Recipe) -> int:
    """Optimizer steps of the whole run; 0 when the data that it depends on are unknown."""
    return derived.total_steps(recipe) or 0


def held_steps(recipe: Recipe) -> int:
    """Steps at min_lr after the decay: NeMo's ``constant_steps``, which it takes off the run's steps."""
    end = recipe.optimizer.decay_steps
    return 0 if end is None else max(0, total_steps(recipe) - end)


def decay_within_run(recipe: Recipe, found: Refusals) -> None:
    """NeMo's decay ends with the run or before it."""
    end, steps = recipe.optimizer.decay_steps, total_steps(recipe)
    rule = "ends its decay within the run; mcore, megatron-lm and bridge also after it"
    found.unless(end is None or steps == 0 or end <= steps, "optimizer.decay_steps", end, rule, None, steps)


def minutes(seconds: float) -> int:
    """Whole minutes, rounded up."""
    return int(-(-seconds // 60))


class Refusals:
    """Collects what an engine cannot do; each sentence says which engine can."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self.found: list[Fault] = []

    def add(self, path: str, value: Any, rule: str, *nearest: Any) -> None:
        self.found.append(Fault(path=path, value=value, rule=f"engine {self._engine}: {rule}", nearest=nearest))

    def unless(self, holds: bool, path: str, value: Any, rule: str, *nearest: Any) -> None:
        if not holds:
            self.add(path, value, rule, *nearest)

    def unless_loadable(self, recipe: Recipe) -> None:
        """Of an engine on megatron-core's checkpoints: the weights, or with them the optimizer and more."""
        checkpoint = recipe.checkpoint
        rule = "loads data and rng of another run only with its optimizer; mcore also without"
        fits = checkpoint.source == Fresh() or set(checkpoint.load) == {"weights"} or loads_optimizer(recipe)
        self.unless(fits, "checkpoint.load", list(checkpoint.load), rule, ["weights"], ["weights", "optimizer"])


def common_faults(engine: str, recipe: Recipe, *, trains_lora: bool = False) -> Refusals:
    """What no foreign engine does, LoRA excepted."""
    found = Refusals(engine)
    found.unless(recipe.hardware.kind == "gpu", "engine", engine, "needs GPUs; mcore also trains on a CPU", "mcore")
    found.unless(
        not recipe.data.record_samples, "data.record_samples", True, "keeps no ledger of samples; mcore does", False
    )
    found.unless(
        total_steps(recipe) > 0 or recipe.train.epochs is not None,
        "train.steps",
        recipe.train.steps,
        "needs a known number of steps",
    )
    template = "chat_tokens" if recipe.alignment is None else recipe.alignment.template
    rule = "renders chats with chat_tokens only; mcore also with the tokenizer's chat template"
    found.unless(template == "chat_tokens", "task.template", template, rule, "chat_tokens")
    packing = recipe.alignment is not None and recipe.alignment.packing
    rule = "packs rows only in files prepared beforehand; mcore packs as it trains"
    found.unless(not packing, "task.packing", True, rule, False)
    rule = "is not given LoRA adapters; mcore and bridge train them"
    found.unless(recipe.lora is None or trains_lora, "task.lora", "…", rule, None)
    mode = recipe.stability.mode
    found.unless(
        mode != "watch",
        "stability.mode",
        mode,
        "stops at NaN or ignores it; mcore can also report it (watch)",
        "act",
        "off",
    )
    return found


def validates_in_time(recipe: Recipe, found: Refusals) -> None:
    """PyTorch Lightning's trainer does not start with a validation interval above the number of its batches."""
    every, steps = recipe.train.val_every_steps, total_steps(recipe)
    rule = f"does not start if this is above the number of steps, {steps:,}; mcore does"
    found.unless(steps == 0 or every <= steps, "train.val_every_steps", every, rule, steps)


def rows_in_one_folder(recipe: Recipe, found: Refusals) -> None:
    """NeMo 2 and Megatron-Bridge look for training.jsonl and validation.jsonl in one folder, and count steps."""
    task, data = recipe.alignment, recipe.data
    assert task is not None
    for name, wanted in (("train", "training.jsonl"), ("validation", "validation.jsonl")):
        value = getattr(data, name)
        fits = value is not None and PurePosixPath(value).name == wanted
        near = () if value is None else (str(PurePosixPath(value).parent / wanted),)
        found.unless(fits, f"data.{name}", value, f"reads a file named {wanted}; nemo1 reads any", *near)
    if data.train is not None and data.validation is not None:
        together = PurePosixPath(data.train).parent == PurePosixPath(data.validation).parent
        found.unless(together, "data.validation", data.validation, "must lie in the folder of data.train")
    found.unless(task.shuffle, "task.shuffle", False, "always shuffles; with nemo1 it can be off", True)
    known = total_steps(recipe) > 0
    rule = "needs a number of steps: set data.train_samples to convert train.epochs"
    found.unless(known, "data.train_samples", data.train_samples, rule)


def retention_notes(tool: str, recipe: Recipe) -> list[str]:
    """How NeMo's ``save_top_k`` differs from the recipe: it goes by validation loss and has no "every n-th"."""
    last, every = recipe.checkpoint.keep_last, recipe.checkpoint.keep_every
    if last is None:  # all are kept, every n-th among them
        return []
    found = [f"{tool} keeps the last checkpoint and the {last} of lowest validation loss"]
    if every is not None:
        found.append(f"{tool} does not keep every {every:,} steps: checkpoint.keep_every is ignored (mcore has it)")
    return found


def stability_notes(tool: str, recipe: Recipe) -> list[str]:
    """What a recipe sets of ``stability`` that only mcore does."""
    fields = ("max_skips", "max_rewinds", "rewind_lr_factor", "rewind_lr_steps", "scan_every_steps")
    set_by = [name for name in fields if getattr(recipe.stability, name) != Stability.model_fields[name].default]
    if not set_by:
        return []
    return [f"{tool} skips no batches and does not go back: stability.{', '.join(set_by)} ignored (mcore has them)"]


def source_folder(source: Source) -> tuple[str, int | None]:
    """``checkpoint.from`` as a path from inside the run folder, and the step if one is named.

    A run is a neighbour of this run folder; a stage stays as it is written: only a dry run has it.
    """
    if isinstance(source, FromRun):
        return f"../{source.run}/{RUN.checkpoints.name}", source.step
    return str(source), None


CONTINUED = RUN.continued.name


def loads_optimizer(recipe: Recipe) -> bool:
    """Whether a run begins with another run's weights and optimizer."""
    checkpoint = recipe.checkpoint
    return checkpoint.source != Fresh() and {"weights", "optimizer"} <= set(checkpoint.load)


def continues(recipe: Recipe) -> dict[str, Any] | None:
    """``Command.continues`` of an engine on megatron-core's checkpoints.

    Without ``data`` in ``checkpoint.load`` step, samples and schedule begin at 0.
    """
    if not loads_optimizer(recipe):
        return None
    (folder, step), opt = source_folder(recipe.checkpoint.source), recipe.optimizer
    return {
        "from": folder,
        "step": step,
        "to": CONTINUED,
        "keep": "data" in recipe.checkpoint.load,
        "groups": {"max_lr": opt.lr, "min_lr": opt.min_lr, "betas": [opt.beta1, opt.beta2], "eps": opt.eps},
    }


def without_optimizer(tool: str, recipe: Recipe) -> list[Fault]:
    """What an engine leaves out that loads nothing but weights of another run."""
    checkpoint, opt, warmup = recipe.checkpoint, recipe.optimizer, derived.warmup_steps(recipe)
    if checkpoint.source == Fresh() or checkpoint.load == ("weights",):
        return []
    steps = round(1 / (1 - opt.beta2)) if opt.beta2 < 1 else None
    rule = f"{tool} loads the weights only: Adam's moments begin at zero"
    if steps is not None:
        long_enough = "covers them" if warmup >= steps else f"should be at least {steps} then"
        rule += f", so the first {steps} or so steps are noisy; the warm-up of {warmup} steps {long_enough}"
    more = [name for name in checkpoint.load if name in ("data", "rng")]
    rule += f"; {', '.join(more)} of the other run are not loaded" if more else ""
    return [Fault(path="checkpoint.load", value=list(checkpoint.load), rule=rule, nearest=(["weights"],))]


def path_faults(recipe: Recipe, unfinished: Callable[[Path], str | None]) -> list[Fault]:
    """What speaks against a path of ``checkpoint.from``, for an engine whose checkpoints are folders.

    Args:
        unfinished: why the engine cannot start from a folder that is not empty; None = it can.
    """
    source = recipe.checkpoint.source
    path = Path(str(source))
    if not isinstance(source, FromPath):
        return []
    if not path.is_dir():
        rule: str | None = f"is a file; engine {recipe.engine}'s checkpoints are folders"
    else:
        rule = unfinished(path) if any(path.iterdir()) else "is an empty folder"
    return [] if rule is None else [Fault(path="checkpoint.from", value=str(source), rule=rule)]
