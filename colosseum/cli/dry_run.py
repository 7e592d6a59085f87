"""``--dry-run``: what would be started. Plan and job script; the bundle itself with --out."""

from __future__ import annotations

from pathlib import Path

from colosseum.bundle import write_bundle
from colosseum.cli.output import document, stdout, warn
from colosseum.launch.compile import Compiled
from colosseum.launch.request import NewRun
from colosseum.launch.submit import warnings
from colosseum.units import format_bytes, format_count, format_duration

DRY_RUN_SCHEMA = "colosseum.dry-run/1"


def show(asked: NewRun, out: Path | None, as_json: bool) -> None:
    """Prints it; ``out`` keeps the bundle."""
    compiled = asked.compiled
    found = [*asked.warnings, *warnings(compiled)]
    if out is not None:
        write_bundle(out, compiled.files, compiled.manifest)
    warn(found)
    if as_json:
        document(
            {
                "schema": DRY_RUN_SCHEMA,
                "recipe": asked.shown,
                "recipe_hash": compiled.manifest["recipe_hash"],
                "plan": compiled.plan.as_json(),
                "script": {"name": compiled.script_name, "text": compiled.script},
                "bundle": None if out is None else str(out),
                "warnings": found,
            }
        )
        return
    from rich.table import Table

    console = stdout()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(asked):
        table.add_row(name, text)
    console.print(table)
    console.print()
    console.out(f"# {compiled.script_name}" + ("" if out is None else f" (bundle kept in {out})"), highlight=False)
    console.out(compiled.script.rstrip("\n"), highlight=False)


def _rows(asked: NewRun) -> list[tuple[str, str]]:
    """The plan in a few lines; ``colosseum plan`` says more."""
    compiled, recipe, plan = asked.compiled, asked.compiled.recipe, asked.compiled.plan
    layout, batch = plan.layout, recipe.batch
    parts = [f"TP{layout.tp}", f"PP{layout.pp}", *([f"VPP{layout.vpp}"] if layout.vpp > 1 else [])]
    parts += [*([f"CP{layout.cp}"] if layout.cp > 1 else []), f"DP{layout.dp}"]
    unit = "pairs" if recipe.task.kind == "dpo" else "sequences"
    rows = [
        ("recipe", f"{asked.shown} ({recipe.task.kind}, engine {recipe.engine})"),
        ("machines", _machines(compiled)),
        ("layout", f"{' '.join(parts)}, recompute {layout.recompute}"),
        (
            "batch",
            f"{batch.gbs:,} {unit} of {batch.seq_length:,} tokens a step: "
            f"{layout.microbatches} microbatches of {layout.mbs}",
        ),
        ("length", _length(compiled)),
    ]
    rows += _predictions(compiled)
    rows.append(("recipe hash", str(compiled.manifest["recipe_hash"])[:16]))
    return rows


def _machines(compiled: Compiled) -> str:
    recipe = compiled.recipe
    count, per_node = recipe.resources.gpus, recipe.resources.gpus_per_node
    nodes = -(-count // per_node)
    what = f"rank{'s' * (count > 1)} on CPU" if recipe.hardware.kind == "cpu" else f"x {recipe.hardware.name}"
    return f"{count:,} {what} ({nodes:,} node{'s' * (nodes > 1)}), cluster {recipe.cluster.name}"


def _length(compiled: Compiled) -> str:
    recipe, train = compiled.recipe, compiled.recipe.train
    step_tokens = recipe.batch.gbs * recipe.batch.seq_length
    if train.steps is not None:
        if recipe.task.kind != "cpt":
            return f"{train.steps:,} steps"
        return f"{train.steps:,} steps, {format_count(train.steps * step_tokens)} tokens"
    if train.tokens is not None:
        return f"{format_count(train.tokens)} tokens, {-(-train.tokens // step_tokens):,} steps"
    return f"{train.epochs} epoch{'s' * ((train.epochs or 0) > 1)}"


def _predictions(compiled: Compiled) -> list[tuple[str, str]]:
    plan, rows = compiled.plan, []
    if plan.step_time_s is not None:
        low_high = plan.step_time_range_s
        spread = "" if low_high is None else f" ({format_duration(low_high[0])} to {format_duration(low_high[1])})"
        rows.append(("step time", format_duration(plan.step_time_s) + spread))
    if plan.model_tflops_per_gpu is not None:
        mfu = "" if plan.mfu is None else f", {plan.mfu.causal:.1%} MFU"
        rows.append(("speed", f"{plan.model_tflops_per_gpu.causal:.0f} TFLOP/s a GPU{mfu}"))
    if plan.memory is not None:
        rows.append(
            ("memory", f"{format_bytes(plan.memory.peak_bytes)} of {format_bytes(plan.memory.usable_bytes)} a rank")
        )
    if plan.days is not None:
        rows.append(
            ("time", f"{plan.days:.1f} days" + ("" if plan.gpu_hours is None else f", {plan.gpu_hours:,.0f} GPU hours"))
        )
    return rows
