"""A plan as text: a summary for a dry run, the whole report, and the table of a scaling study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from colosseum.console import columns, facts
from colosseum.planning.plan import Layout, Memory, Plan, Production, Rejected, StageMemory
from colosseum.planning.scaling import ScalePoint
from colosseum.recipe import derived
from colosseum.recipe.schema import Recipe
from colosseum.recipe.tasks import FACTS
from colosseum.units import GIB, format_bytes, format_count, format_duration, format_rounded

Rows = list[tuple[str, str]]

PARTS = {
    "gemm": "matrix products",
    "attention": "attention",
    "memory_bound": "norms, activations, casts",
    "recompute": "recomputation",
    "head": "embedding, logits, loss",
    "tp": "tensor-parallel traffic",
    "cp": "context-parallel traffic",
    "pp_bubble": "pipeline bubble",
    "pp_imbalance": "waiting for the slowest stage",
    "p2p": "pipeline sends",
    "dp": "data-parallel traffic",
    "optimizer": "optimizer",
    "reference": "reference log-probs",
    "jitter": "jitter and site factor",
}
"""Names of the parts of a step; of the transfers it is what compute does not hide."""
COMPONENTS = ("weights", "gradients", "optimizer", "activations", "logits", "workspace", "context")
STAGES_SHOWN = 12
BAR = 24


def heading_rows(shown: str, recipe: Recipe, plan: Plan) -> Rows:
    """What is planned: recipe, machines, layout, batch, length."""
    layout, batch = plan.layout, recipe.batch
    unit = FACTS[recipe.task.kind].samples
    return [
        ("recipe", f"{shown} ({recipe.task.kind}, engine {recipe.engine})"),
        ("machines", machines(recipe)),
        ("layout", f"{layout.text}, recompute {_recompute(layout)}"),
        (
            "batch",
            f"{batch.gbs:,} {unit} of {batch.seq_length:,} tokens per step: "
            f"{layout.microbatches} micro-batch{'es' * (layout.microbatches > 1)} of {layout.mbs}",
        ),
        ("length", length(recipe)),
    ]


def _recompute(layout: Layout) -> str:
    if layout.recompute_num_layers is None:
        return layout.recompute
    return f"{layout.recompute} ({layout.recompute_method}, {layout.recompute_num_layers} layers)"


def machines(recipe: Recipe) -> str:
    """``2,880 x h100-sxm (360 nodes), cluster dgx-h100``."""
    count, per_node = recipe.resources.gpus, recipe.resources.gpus_per_node
    nodes = -(-count // per_node)
    what = f"rank{'s' * (count > 1)} on CPU" if recipe.hardware.kind == "cpu" else f"x {recipe.hardware.name}"
    return f"{count:,} {what} ({nodes:,} node{'s' * (nodes > 1)}), cluster {recipe.cluster.name}"


def length(recipe: Recipe) -> str:
    """Steps and tokens of the recipe's budget, and the rows that its epochs leave out."""
    train, steps = recipe.train, derived.total_steps(recipe)
    counted = "" if steps is None else f", {steps:,} steps"
    if train.steps is not None:
        if recipe.alignment is not None:  # rows are shorter than seq_length
            return f"{train.steps:,} steps"
        return f"{train.steps:,} steps, {format_count(train.steps * derived.tokens_per_step(recipe))} tokens"
    if train.tokens is not None:
        return f"{format_count(train.tokens)} tokens{counted}"
    dropped = derived.dropped_rows(recipe)
    left = f" (each epoch drops its last {dropped:,} rows, less than a batch)" if dropped else ""
    return f"{train.epochs} epoch{'s' * ((train.epochs or 0) > 1)}" + counted + left


def prediction_rows(plan: Plan) -> Rows:
    """Step time, speed, memory, time."""
    rows: Rows = []
    if plan.step_time_s is not None:
        low_high = plan.step_time_range_s
        spread = "" if low_high is None else f" ({format_duration(low_high[0])} to {format_duration(low_high[1])})"
        rows.append(("step time", f"{format_duration(plan.step_time_s)}{spread} in an acceptance run"))
    if plan.production is not None:
        rows.append(("", f"{_production_step(plan.production)} in production"))
    if plan.model_tflops_per_gpu is not None:
        mfu = "" if plan.mfu is None else f", {plan.mfu.causal:.1%} MFU"
        rows.append(("speed", f"{plan.model_tflops_per_gpu.causal:.0f} TFLOP/s per GPU{mfu}"))
    if plan.memory is not None:
        filled = plan.memory.device_bytes or plan.memory.peak_bytes
        rows.append(("memory", f"{format_bytes(filled)} of {format_bytes(plan.memory.usable_bytes)} per rank"))
    if plan.days is not None:
        hours = "" if plan.gpu_hours is None else f", {format_rounded(plan.gpu_hours)} GPU hours"
        rows.append(("time", f"{format_duration(plan.days * 86400)} in production{hours}"))
        rows += [("cost", f"{format_rounded(plan.cost)} {plan.currency}")] if plan.cost is not None else []
    return rows


def plan_report(shown: str, recipe: Recipe, plan: Plan) -> Group:
    """The whole plan of the recipe that is named ``shown``."""
    verdict = "fits" if plan.fits else "does NOT fit"
    made = [] if plan.calibration is None else [f"calibration {plan.calibration.name} ({plan.calibration.hash[:12]})"]
    return Group(
        facts([*heading_rows(shown, recipe, plan), *_model_rows(recipe, plan.layout), ("verdict", verdict)]),
        *(_memory(plan.memory) if plan.memory is not None else ()),
        *_time(recipe, plan),
        *_disk(recipe, plan),
        *_candidates(plan.rejected),
        *_notes("Advice", plan.advice),
        *_notes("Assumed", [*made, *plan.assumptions]),
    )


def _model_rows(recipe: Recipe, layout: Layout) -> Rows:
    """How layers and vocabulary are divided: layers by pipeline stage, rows of the embedding after padding."""
    model, rows = recipe.model, []
    ends = layout.first_stage_layers, layout.last_stage_layers
    embedding = layout.account_for_embedding_in_pipeline_split
    loss = layout.account_for_loss_in_pipeline_split
    stages = derived.stage_layers(model.num_layers, layout.pp, ends, embedding=embedding, loss=loss)
    if layout.pp > 1 and stages is not None:
        every = (stages[0], *stages[1:-1] * (layout.pp - 2), stages[-1])  # an interior rank stands for all of them
        groups = [(n, len(list(same))) for n, same in groupby(every)]
        text = ", ".join(str(n) if count == 1 else f"{count} x {n}" for n, count in groups)
        rows.append(("stages", f"{text} layers"))
    padded = model.padded_vocab(layout.tp)
    added = padded - model.vocab_size
    rows.append(("vocabulary", f"{padded:,} rows" + (f", {added:,} of them padding" if added else "")))
    return rows


def _title(text: str) -> Text:
    return Text.assemble("\n", (text, "bold underline"))


def _notes(title: str, lines: Sequence[str]) -> Iterator[RenderableType]:
    if lines:
        yield _title(title)
        yield columns((("-", line) for line in lines), padding=(0, 1, 0, 0))


def _columns(*names: str) -> Table:
    """A table whose columns after the first hold numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i > 0)
    return table


def _bar(start: float, end: float, whole: float, width: int = BAR) -> str:
    """A stretch of a line from 0 to ``whole``."""
    left = round(width * start / whole)
    return " " * left + "█" * max(round(width * end / whole) - left, 0)


def _memory(memory: Memory) -> Iterator[RenderableType]:
    """The fullest stage as a waterfall, then every stage in a line."""
    stages = memory.stages
    fullest = max(range(len(stages)), key=lambda i: stages[i].total_bytes)
    usable = memory.usable_bytes
    yield _title(f"Memory of the fullest rank (pipeline stage {fullest + 1} of {len(stages)})")
    table = _columns("", "GiB", "share")
    table.add_column("")
    at, whole = 0.0, max(usable, stages[fullest].total_bytes)
    for name in COMPONENTS:
        size = _part(stages[fullest], name)
        table.add_row(name, _gib(size), f"{size / usable:.1%}", _bar(at, at + size, whole))
        at += size
    left = usable - at
    table.add_row("head-room" if left >= 0 else "missing", _gib(abs(left)), f"{abs(left) / usable:.1%}", "")
    table.add_row("usable", _gib(usable), "100.0%", _bar(0, usable, whole))
    yield table
    if memory.host_bytes_per_node:
        yield f"Host memory per node for the reference policy: {format_bytes(memory.host_bytes_per_node)}."
    if len(stages) == 1:
        return
    yield _title("Memory by pipeline stage, GiB per rank")
    table = _columns("stage", "weights", "grads", "optim", "activ", "logits", "work", "context", "total", "left")
    for i in _shown_stages(len(stages), fullest):
        parts = [_gib(_part(stages[i], name)) for name in COMPONENTS]
        total = stages[i].total_bytes
        table.add_row(str(i + 1), *parts, _gib(total), _gib(usable - total), style="bold" if i == fullest else "")
    table.padding = (0, 1, 0, 0)
    yield table


def _shown_stages(count: int, fullest: int) -> list[int]:
    """Stages that are listed: all, or of many the first, the fullest and the last ones."""
    if count <= STAGES_SHOWN:
        return list(range(count))
    return sorted({*range(STAGES_SHOWN - 4), fullest, count - 2, count - 1})


def _part(stage: StageMemory, name: str) -> float:
    return float(getattr(stage, f"{name}_bytes"))


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}" if abs(size) < 100 * GIB else f"{size / GIB:.0f}"


def _time(recipe: Recipe, plan: Plan) -> Iterator[RenderableType]:
    step = plan.step_time_s
    if step is None or plan.mfu is None or plan.model_tflops_per_gpu is None or plan.tokens_per_s_per_gpu is None:
        return
    yield _title("Time per step")
    table = _columns("", "s", "share")
    table.add_column("")
    at = 0.0
    for name, seconds in plan.step_time_parts_s.items():
        if seconds / step >= 5e-5:
            bar = _bar(at, at + seconds, step)
            table.add_row(PARTS.get(name, name), f"{seconds:.4g}", f"{seconds / step:.1%}", bar)
        at += seconds
    low, high = plan.step_time_range_s or (step, step)
    table.add_row("step", f"{step:.4g}", "100.0%", f"{low:.4g} to {high:.4g} s")
    yield table
    tflops, mfu, rate = plan.model_tflops_per_gpu, plan.mfu, plan.tokens_per_s_per_gpu
    every = rate * recipe.resources.gpus
    peak = f"{plan.mfu_peak_tflops:.0f} dense {recipe.precision.dtype.upper()}"
    rows = [
        ("MFU", f"{mfu.causal:.1%} causal attention, {mfu.full:.1%} full attention"),
        (
            "",
            f"{tflops.causal:.0f} and {tflops.full:.0f} model TFLOP/s per GPU, of {peak}",
        ),
        ("tokens", f"{rate:,.0f} /s per GPU, {format_count(every)} /s in total, {format_count(every * 86400)} per day"),
    ]
    yield facts(rows)
    yield from _in_production(plan)


def _in_production(plan: Plan) -> Iterator[RenderableType]:
    """Acceptance and production side by side; days and cost are production's."""
    real, mfu, step = plan.production, plan.mfu, plan.step_time_s
    if real is None or mfu is None or step is None:
        return
    yield _title("Acceptance run and production")
    low, high = plan.step_time_range_s or (step, step)
    table = _columns("", "step", "range", "MFU causal", "MFU full")
    for name, each, least, most, used in (
        ("acceptance", step, low, high, mfu),
        ("production", real.step_time_s, *real.step_time_range_s, real.mfu),
    ):
        span = f"{format_duration(least)} to {format_duration(most)}"
        table.add_row(name, format_duration(each), span, f"{used.causal:.1%}", f"{used.full:.1%}")
    yield table
    source = "this cluster's failures and saves" if real.restarts_measured else "published runs"
    rows = [("restarts", f"x {real.restart_factor:.2f} of the steps' time ({source})")]
    if real.days is not None and real.days_range is not None and real.gpu_hours is not None:
        span = " to ".join(format_duration(days * 86400) for days in real.days_range)
        run = f"{format_duration(real.days * 86400)} ({span}), {format_rounded(real.gpu_hours)} GPU hours"
        rows.append(("run", run))
    if plan.cost is not None:
        rows.append(("cost", f"{format_rounded(plan.cost)} {plan.currency}"))
    yield facts(rows)


def _production_step(real: Production) -> str:
    least, most = (format_duration(seconds) for seconds in real.step_time_range_s)
    return f"{format_duration(real.step_time_s)} ({least} to {most})"


def _disk(recipe: Recipe, plan: Plan) -> Iterator[RenderableType]:
    disk = plan.storage
    if disk is None:
        return
    yield _title("Checkpoints")
    kept = "all kept" if recipe.checkpoint.keep_last is None else f"at most {disk.kept or 1} on disk"
    free = "" if disk.free_bytes is None else f" of {format_bytes(disk.free_bytes)}"
    rows = [("size", f"{format_bytes(disk.checkpoint_bytes)}; {kept}: {format_bytes(disk.disk_bytes)}{free}")]
    if disk.free_bytes is not None and disk.disk_bytes > disk.free_bytes:
        rows.append(("", f"does NOT fit by {format_bytes(disk.disk_bytes - disk.free_bytes)}"))
    if disk.save_time_s is not None:
        load = "" if disk.load_time_s is None else f", load {format_duration(disk.load_time_s)}"
        how = " (in the background)" if recipe.checkpoint.async_save else ""
        rows.append(("save", f"{format_duration(disk.save_time_s)}{how}{load}"))
    every = f"every {recipe.checkpoint.every_steps:,} steps"
    if plan.step_time_s is not None:
        every += f" = {format_duration(recipe.checkpoint.every_steps * plan.step_time_s)}"
    rows.append(("cadence", every))
    if disk.advised_every_steps is not None and plan.step_time_s is not None:
        between = format_duration(disk.advised_every_steps * plan.step_time_s)
        rows.append(("", f"best for this cluster's failure rate: every {disk.advised_every_steps:,} steps = {between}"))
    if disk.goodput is not None:
        rows.append(("goodput", f"{disk.goodput:.1%} of the time trains new steps"))
    elif plan.step_time_s is not None:
        known = {
            "cluster.node_mtbf_hours": recipe.cluster.node_mtbf_hours,
            "cluster.storage.write_bytes_per_s": recipe.cluster.storage.write_bytes_per_s,
        }
        rows.append(("goodput", f"unknown: set {' and '.join(k for k, v in known.items() if v is None)}"))
    yield facts(rows)


def _candidates(rejected: Sequence[Rejected]) -> Iterator[RenderableType]:
    if not rejected:
        return
    yield _title("Other layouts")
    table = _columns("layout", "mbs", "recompute")
    table.add_column("why not", overflow="fold")
    for other in rejected:
        data = other.layout
        names = ("tp", "pp", "vpp", "cp", "dp")
        text = " ".join(f"{n.upper()}{data[n]}" for n in names if data[n] > 1 or n in ("tp", "pp", "dp"))
        ends = [n.split("_")[2] for n in data if n.startswith("account_for_")]
        again = str(data["recompute"]) + (
            f" {data['recompute_num_layers']}" if data.get("recompute_num_layers") else ""
        )
        table.add_row(text + (f" +{'+'.join(ends)}" if ends else ""), str(data["mbs"]), again, other.reason)
    yield table


def scaling_report(points: Sequence[ScalePoint]) -> Group:
    """Strong and weak scaling, a line each."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for name in ("GPUs", "batch", "", "layout", "s/step", "MFU", "tokens/day", "days"):
        text = name in ("", "layout")
        table.add_column(name, justify="left" if text else "right", no_wrap=name != "layout")
    refused = []
    for point in points:
        plan = point.plan
        head = (f"{point.gpus:,}", f"{point.gbs:,}", point.kind)
        if plan is None or plan.step_time_s is None or plan.mfu is None or plan.tokens_per_s_per_gpu is None:
            table.add_row(*head, "illegal" if plan is None else plan.layout.text, "", "", "", "")
            refused += [f"{point.gpus:,} GPUs, batch {point.gbs:,}: {point.reason}"] if point.reason else []
            continue
        layout = plan.layout.text + ("" if plan.fits else ": does not fit")
        day = format_count(plan.tokens_per_s_per_gpu * point.gpus * 86400)
        days = "" if plan.days is None else f"{plan.days:,.1f}"
        table.add_row(*head, layout, f"{plan.step_time_s:.4g}", f"{plan.mfu.causal:.1%}", day, days)
    return Group(table, *_notes("Illegal", refused))
