"""A report of runs as one HTML page: no script, no network, light and dark, printable."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup

from colosseum import __version__
from colosseum.monitor.chart import STYLE, svg
from colosseum.monitor.contents import Contents
from colosseum.monitor.curves import Figure, figures
from colosseum.monitor.goodput import CAUSES, Goodput
from colosseum.monitor.summary import summary_rows
from colosseum.recipe.compare import ABSENT
from colosseum.terminal import one_line
from colosseum.units import format_bytes, format_count, format_duration

COLOURS = {
    **{"training": "#2e8540", "queue": "#8a94a3", "start": "#7a3fa0", "load": "#a86fd0", "restart": "#b3261e"},
    **{"recomputed": "#e0703a", "data": "#1f5fa8", "stragglers": "#c99700", "validation": "#0e7c86"},
    **{"save": "#5aa9b8", "other": "#4a5568"},
}
"""Of the causes: the same in every report."""


def page(runs: Sequence[Contents]) -> str:
    """The whole document."""
    title = _name(runs[0]) if len(runs) == 1 else f"{len(runs)} runs"
    written = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    several = len(runs) > 1
    return _template().render(
        title=title,
        written=f"Written by Colosseum {__version__} at {written}.",
        runs=[_run(one) for one in runs],
        summary=summary_rows(runs),
        charts=[_chart(figure) for figure in figures(runs)],
        chart_style=Markup(STYLE),  # noqa: S704 (ours)
        of=lambda run: f": {run['name']}" if several else "",
    )


@cache
def _template() -> Template:
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True).from_string(text)


def _chart(figure: Figure) -> dict[str, Any]:
    picture = Markup(svg(figure.chart, width=540, height=230))  # noqa: S704 (its texts are escaped)
    return {"title": figure.chart.title, "svg": picture, "note": figure.note}


def _run(one: Contents) -> dict[str, Any]:
    tables = [_restarts(one), _attempts(one), _memory(one), _changes(one), _data(one), _environment(one), _events(one)]
    return {
        "name": _name(one),
        "goodput": _goodput(one.goodput, one.predicted.goodput),
        "tables": [table for table in tables if table is not None],
        "recipe": one.recipe_text,
    }


def _goodput(found: Goodput, predicted: float | None) -> dict[str, Any] | None:
    if found.share is None:
        return None
    sentence = f"{found.share:.1%} of {format_duration(found.wall_s)} of wall time trained new steps"
    sentence += f" (plan: {predicted:.1%} after the first start)" if predicted is not None else ""
    if found.stopped_s:
        sentence += f"; {format_duration(found.stopped_s)} without a submitted job are not counted"
    parts = [
        {
            "name": name,
            "colour": COLOURS[name],
            "percent": f"{100 * seconds / found.wall_s:.3f}",
            "share": f"{seconds / found.wall_s:.1%}",
            "time": format_duration(seconds),
            "what": CAUSES[name],
        }
        for name, seconds in found.seconds.items()
    ]
    return {"sentence": sentence + ".", "parts": parts}


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> dict[str, Any]:
    return {"title": title, "head": head, "rows": rows, "note": note}


def _restarts(one: Contents) -> dict[str, Any] | None:
    def time_of(seconds: float | None) -> str:
        return "" if seconds is None else format_duration(seconds)

    if not one.goodput.restarts:
        return None
    rows = [
        (
            str(r.attempt),
            r.kind,
            *map(time_of, (r.noticed_s, r.requeue_s, r.start_s, r.load_s, r.recomputed_s, r.total_s)),
        )
        for r in one.goodput.restarts
    ]
    head = ("attempt", "the one before", "noticed", "requeued", "started", "loaded", "recomputed", "in all")
    note = "From the last step of an attempt to the end of the first new step of the next one."
    return _table("Restarts", head, rows, note)


def _attempts(one: Contents) -> dict[str, Any] | None:
    if not one.attempts:
        return None
    rows = []
    for a in one.attempts:
        began = "" if a.began_unix_s is None else time.strftime("%m-%d %H:%M:%S", time.gmtime(a.began_unix_s))
        steps = [f"{a.from_step:,}", *("" if n is None else f"{n:,}" for n in (a.last_step, a.lost_steps))]
        rows.append((str(a.number), a.job_id, a.nodes, began, *steps, (a.kind or "").replace("_", " "), a.reason))
    head = ("", "job", "nodes", "started (UTC)", "from step", "to step", "lost steps", "ended", "reason")
    return _table("Attempts and nodes", head, rows)


def _memory(one: Contents) -> dict[str, Any] | None:
    measured, planned = one.metrics.memory_peak_bytes, one.predicted.stage_bytes
    if not measured:
        return None
    rows = []
    for stage, peak in enumerate(measured):
        plan = planned[stage] if stage < len(planned) else 0.0
        ratio = f"{peak / plan:.3f}" if plan else ""
        rows.append((str(stage), format_bytes(peak), format_bytes(plan) if plan else "", ratio))
    usable = one.predicted.usable_bytes
    note = f"The plan may fill {format_bytes(usable)} of the device." if usable else ""
    return _table("Memory by pipeline stage", ("stage", "measured peak", "plan", "measured/plan"), rows, note)


def _changes(one: Contents) -> dict[str, Any] | None:
    if not one.parent:
        return None
    note = f"Started from {one.parent}. {one.changes_unknown}".strip()
    rows = [
        (d.path, d.kind, *("" if v == ABSENT else one_line(str(v), 200) for v in (d.first, d.second)))
        for d in one.changes
    ]
    return _table("Changes to the parent", ("field", "kind", "parent", "this run") if rows else (), rows, note)


def _data(one: Contents) -> dict[str, Any] | None:
    total = sum(one.tokens_by_source.values())
    if not total:
        return None
    rows = [(name, format_count(count), f"{count / total:.2%}") for name, count in one.tokens_by_source.items()]
    return _table("Data consumed", ("source", "tokens", "share"), rows, "At the last checkpoint (ledger.jsonl).")


def _environment(one: Contents) -> dict[str, Any] | None:
    rows = []
    for section, prefix in (("versions", ""), ("git", "git "), ("container", "container ")):
        found = one.manifest.get(section)
        for name, value in found.items() if isinstance(found, dict) else ():
            rows.append((f"{prefix}{one_line(str(name), 60)}", one_line(str(value), 300)))
    rows.append(("recipe hash", one_line(str(one.manifest.get("recipe_hash") or ""), 100)))
    return _table("Environment", (), rows)


def _events(one: Contents) -> dict[str, Any] | None:
    if not one.events:
        return None
    rows = []
    for event in reversed(one.events):
        details = ", ".join(f"{name} {value}" for name, value in event.fields.items())
        when = time.strftime("%m-%d %H:%M:%S", time.gmtime(event.time_unix_s))
        rows.append((when, f"{event.step:,}", event.kind.replace("_", " "), one_line(details, 300)))
    return _table("Events", ("time (UTC)", "step", "event", ""), rows, "Newest first.")


def _name(one: Contents) -> str:
    return one.run.root.resolve().name
