"""``colosseum watch RUN|CAMPAIGN``: a page in the terminal that follows a run."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from colosseum.cli.output import Cluster, Runs, show, stdout
from colosseum.errors import RefusedInput
from colosseum.launch.campaigns.campaign import Campaign, find
from colosseum.launch.campaigns.report import stages_text
from colosseum.launch.campaigns.status import statuses
from colosseum.launch.runs.jobs import LIVE, Job, job_of, pick_run, runs_folder
from colosseum.launch.runs.screen import screen
from colosseum.monitor.recent import read_recent
from colosseum.rundir import RunDir

REFRESH_S = 2.0
ASK_EVERY_S = 20.0
"""The scheduler is asked as often; in between the run folder tells."""


def watch(
    name: Annotated[str, typer.Argument(metavar="RUN|CAMPAIGN", help="A run or campaign: folder, name, part of one.")],
    once: Annotated[bool, typer.Option("--once", help="Print the page once; so it is where stdout is a pipe.")] = False,
    cluster: Cluster = None,
    runs: Runs = None,
) -> None:
    """Follow a run in the terminal until it ends: loss, speed beside the plan, split of a step, checkpoint, events."""
    root = runs_folder(runs, cluster)
    try:
        place: RunDir | Campaign = pick_run(name, root)
    except RefusedInput as refused:
        try:
            place = find(name, root)
        except RefusedInput:
            raise refused from None
    if once or not sys.stdout.isatty():
        show(*_page(place, None)[0])
        return
    _follow(place)


def _follow(place: RunDir | Campaign) -> None:
    from rich.live import Live

    asked_s, job = time.monotonic(), None
    parts, job, live = _page(place, job)
    with Live(Group(*parts), console=stdout(), auto_refresh=False, screen=True) as page:
        while live:
            page.update(Group(*parts), refresh=True)
            time.sleep(REFRESH_S)
            if time.monotonic() - asked_s >= ASK_EVERY_S:
                asked_s, job = time.monotonic(), None
            parts, job, live = _page(place, job)
    show(*parts)


def _page(place: RunDir | Campaign, known: Job | None) -> tuple[list[RenderableType], Job | None, bool]:
    """The page, the job, and whether it still lives.

    Args:
        known: the job as the scheduler described it a moment ago; None = ask again.
    """
    width = stdout().width
    if isinstance(place, Campaign):
        found = statuses(place)
        current = next((s.job for s in found if s.job is not None and s.job.word in LIVE), None)
        parts: list[RenderableType] = [stages_text(found)]
        if current is not None:
            parts += ["", *screen(current, read_recent(current.run), width)]
        return parts, None, current is not None
    job = job_of(place) if known is None else known.read_again()
    return screen(job, read_recent(place), width), job, job.word in LIVE
