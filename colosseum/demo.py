"""The last page of scripts/demo: ``python -m colosseum.demo RUN RESUMED``. Exit 4 if the model learned nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from colosseum.bundle import RECIPE
from colosseum.data.unigram import blend_entropy
from colosseum.errors import ColosseumError, RunFailed
from colosseum.monitor.plot import Curve, Level, save_png, text_plot
from colosseum.monitor.report import RunSummary, summarise
from colosseum.rundir import RunDir

CLEARLY_BELOW_NATS = 0.3
MAX_JUMP_NATS = 0.5
"""A resumed run must continue the loss curve of the first: their means over some steps differ by less than this."""


def main(first_root: str, resumed_root: str) -> int:
    """Prints the page; the exit code."""
    console = Console(highlight=False)
    try:
        first, resumed = summarise(RunDir(Path(first_root))), summarise(RunDir(Path(resumed_root)))
        entropy = Level(name="unigram entropy", value=_entropy(first))
        picture = first.run.root / "loss.png"
        _plot(console, first, resumed, entropy, picture)
        _table(console, first, resumed, entropy, picture)
        _what_next(console, first)
        _judge(first, resumed, entropy.value)
    except ColosseumError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _entropy(run: RunSummary) -> float:
    """Of the blend that the run was trained on."""
    recipe = yaml.safe_load((run.run.bundle / RECIPE).read_text())
    return blend_entropy([(Path(entry["path"]), entry["weight"]) for entry in recipe["data"]["blend"]])


def _plot(console: Console, first: RunSummary, resumed: RunSummary, entropy: Level, picture: Path) -> None:
    validations = [c for c in (first.validation, resumed.validation) if c]
    validation = [_chain("validation", validations, "●")] if validations else []
    again = Curve(name="after the resume", steps=resumed.training.steps, values=resumed.training.values)
    save_png([first.training, again, *validation], [entropy], picture, title="Loss of the demo model")
    training = _chain("training", [first.training, resumed.training])
    resume = Curve(name="resumed", steps=[resumed.first_step], values=[resumed.first_loss], marker="▲")
    console.print(text_plot([training, *validation, resume], [entropy], width=console.width), soft_wrap=True)


def _chain(name: str, curves: list[Curve], marker: str = "") -> Curve:
    steps = [s for c in curves for s in c.steps]
    return Curve(name=name, steps=steps, values=[v for c in curves for v in c.values], marker=marker)


def _table(console: Console, first: RunSummary, resumed: RunSummary, entropy: Level, picture: Path) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("loss", f"{first.first_loss:.2f} → {first.last_loss:.2f} nats per token in {first.last_step} steps")
    if first.last_validation_loss is not None:
        table.add_row("validation loss", f"{first.last_validation_loss:.2f} on text never trained on")
    table.add_row("unigram entropy", f"{entropy.value:.2f}: what token frequencies alone would reach")
    table.add_row(
        "resumed", f"at step {resumed.first_step} with loss {resumed.first_loss:.2f}, to step {resumed.last_step}"
    )
    table.add_row("speed", f"{first.tokens_per_s:,.0f} tokens/s; {first.tokens:,} tokens seen")
    table.add_row("run", str(_short(first.run.root)))
    table.add_row("resumed run", str(_short(resumed.run.root)))
    table.add_row("metrics", str(_short(first.run.metrics)))
    table.add_row("checkpoints", str(_short(first.run.checkpoints)))
    table.add_row("plot", str(_short(picture)))
    console.print()
    console.print(table)


def _what_next(console: Console, first: RunSummary) -> None:
    command = "colosseum" if os.environ.get("VIRTUAL_ENV") else ".venv/bin/colosseum"
    console.print("\nWhat to type next:")
    for words, why in (
        ("show debug/cpt-4k-bf16", "the recipe that was trained"),
        ("explain debug/cpt-4k-bf16 optimizer.lr", "where a value comes from, and its name elsewhere"),
        (
            "train cpt --stage bf16-4k --cluster dgx-h100 --dry-run",
            "the same for 2,880 H100: plan and job script",
        ),
    ):
        console.print(f"  {command} {words}\n      [dim]{why}[/dim]", soft_wrap=True)


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _judge(first: RunSummary, resumed: RunSummary, entropy: float) -> None:
    reached = first.last_loss if first.last_validation_loss is None else first.last_validation_loss
    if not reached < entropy - CLEARLY_BELOW_NATS:
        raise RunFailed(
            f"the loss {reached:.2f} is not clearly below the unigram entropy {entropy:.2f}: the model learned nothing"
        )
    if resumed.first_step != first.last_step + 1:
        raise RunFailed(f"the resume began at step {resumed.first_step}, not {first.last_step + 1}")
    if abs(resumed.last_loss - first.last_loss) > MAX_JUMP_NATS:
        raise RunFailed(f"the loss jumped from {first.last_loss:.2f} to {resumed.last_loss:.2f} at the resume")


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.exit(main(*sys.argv[1:3]))
