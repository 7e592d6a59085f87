"""The live page of one run: all that fits in a terminal of 80 columns."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from colosseum.console import columns
from colosseum.launch.runs.jobs import Job
from colosseum.launch.runs.report import state_text
from colosseum.monitor.plot import Curve, text_plot
from colosseum.monitor.recent import Recent
from colosseum.monitor.watch import age_s
from colosseum.records import MetricsRow, number
from colosseum.terminal import one_line
from colosseum.units import format_count, format_duration

PLOT_ROWS = 8
MAX_WIDTH = 120
SOURCES = 4
"""Of the mix; the rest is one figure."""


def screen(job: Job, recent: Recent, width: int) -> list[RenderableType]:
    """The page from top to bottom."""
    width = min(width, MAX_WIDTH)
    parts: list[RenderableType] = [*_head(job), _progress(job, width)]
    losses = [(row["step"], loss) for row in recent.train if (loss := number(row.get("loss"))) is not None]
    if len(losses) > 1:
        curve = Curve(name="loss", steps=[step for step, _ in losses], values=[loss for _, loss in losses])
        parts.append(text_plot([curve], [], width=width, height=PLOT_ROWS))
    rows = [*_training(recent), *_speed(job, recent), *_state(job, recent)]
    if rows:
        parts.append(columns([(Text(name, style="bold"), text) for name, text in rows]))
    parts += [Text(one_line(_event(event), width)) for event in recent.events]
    return parts


def _head(job: Job) -> list[Text]:
    words = [job.run.root.resolve().name, f"job {job.submission.job_id}" if job.submission.job_id else ""]
    line = Text("  ".join(word for word in words if word), style="bold")
    line.append("  ").append_text(state_text(job))
    if job.why:
        line.append(f": {one_line(job.why, 300)}", style="not bold")
    return [line]


def _progress(job: Job, width: int) -> Text:
    at = job.status
    if not at.step:
        return Text("no step yet", style="dim")
    text = f"step {at.steps_text}"
    if at.left_s is not None and job.word == "running":
        text += f"  left {format_duration(at.left_s)}"
    if not at.total_steps:
        return Text(text)
    room = max(10, width - len(text) - 10)
    done = min(1.0, at.step / at.total_steps)
    filled = round(done * room)
    line = Text("━" * filled, style="green").append("━" * (room - filled), style="dim")
    return line.append(f" {done:4.0%}  ", style="not dim default").append(text, style="not dim default")


def _training(recent: Recent) -> list[tuple[str, str]]:
    figures = [
        ("loss", "loss", "{:.4f}"),
        ("gradient norm", "grad_norm", "{:.3f}"),
        ("learning rate", "lr", "{:.2e}"),
    ]
    found = [f"{name} {form.format(value)}" for name, key, form in figures if (value := recent.last(key)) is not None]
    if recent.validation_loss is not None:
        found.append(f"validation loss {recent.validation_loss:.4f}")
    return [("training", ", ".join(found))] if found else []


def _speed(job: Job, recent: Recent) -> list[tuple[str, str]]:
    at, rows = job.status, []
    if at.step_time_s is not None:
        reach = recent.predicted.step_time_range_s
        plan = f" (plan: {reach[0]:.3g} to {reach[1]:.3g} s)" if reach else ""
        tokens = "" if at.tokens_per_s is None else f", {at.tokens_per_s:,.0f} tokens/s"
        rows.append(("step time", f"{at.step_time_s:.3g} s{plan}{tokens}"))
    if at.mfu is not None:
        bounds = recent.predicted.mfu_range
        plan, low = (f" (plan: {bounds[0]:.1%} to {bounds[1]:.1%})", bounds[0]) if bounds else ("", 0.0)
        rows.append(("MFU", f"{at.mfu:.1%}{plan}" + (", below the plan" if at.mfu < low else "")))
    split = recent.split_s()
    if total := sum(split.values()):
        rows.append(("step split", ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in split.items())))
    slowest, median = recent.last("slowest_rank_s"), recent.last("median_rank_s")
    if slowest is not None and median and (rank := recent.last("slowest_rank")) is not None:
        rows.append(("slowest rank", f"{rank:.0f}: {slowest / median:.2f} times the median of its stage"))
    return rows


def _state(job: Job, recent: Recent) -> list[tuple[str, str]]:
    at, rows = job.status, []
    if recent.tokens_by_source and (total := sum(recent.tokens_by_source.values())):
        sources = sorted(recent.tokens_by_source.items(), key=lambda item: -item[1])
        shares = [f"{name.rpartition('/')[2]} {count / total:.1%}" for name, count in sources[:SOURCES]]
        rest = sum(count for _, count in sources[SOURCES:])
        shares += [f"{len(sources) - SOURCES} more {rest / total:.1%}"] if rest else []
        rows.append(("data", f"{format_count(total)} tokens: {', '.join(shares)}"))
    age = age_s(at.saved_unix_s)
    rows.append(("checkpoint", "none yet" if age is None else f"step {at.saved_step:,}, {format_duration(age)} ago"))
    if job.attempt is not None:
        nodes = f" on {one_line(job.attempt.nodes, 200)}" if job.attempt.nodes else ""
        rows.append(("restarts", f"{job.attempt.number}; attempt {job.attempt.number}{nodes}"))
    heard = age_s(at.heard_unix_s)
    if heard is not None and job.word == "running":
        rows.append(("last row", f"{format_duration(heard)} ago"))
    return rows


def _event(event: MetricsRow) -> str:
    when = time.strftime("%H:%M:%S", time.gmtime(event.time_unix_s))
    details = ", ".join(_details(event))
    return f"{when}  step {event.step:,}  {event.kind.replace('_', ' ')}  {details}"


def _details(event: MetricsRow) -> Sequence[str]:
    reason = event.fields.get("reason")
    return [str(reason)] if reason else [f"{name} {value}" for name, value in event.fields.items()]
