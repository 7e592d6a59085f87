"""How a followed run ended, as text for the user."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colosseum.monitor.logs import last_lines
from colosseum.recipe.schema import Recipe
from colosseum.recipe.tasks import command
from colosseum.records import Outcome
from colosseum.rundir import RunDir
from colosseum.terminal import one_line

LOG_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The outcome of a run's job."""

    outcome: Outcome | None
    failure: str | None
    """Why it failed, with the last lines of the relevant log; None = it did not fail."""
    sentence: str
    """The message if it did not fail."""

    @property
    def stopped(self) -> bool:
        """Stopped before its last step, after a save."""
        return self.outcome is not None and self.outcome.kind == "saved"


def ending_of(run: RunDir, job_id: str, recipe: Recipe) -> Ending:
    """How a job of a run has ended."""
    again = f"{command(recipe.task.kind)} --from {run.root}"
    attempt = run.attempt_of(job_id)
    outcome = None if attempt is None else attempt.read_outcome()
    if attempt is None or outcome is None:
        failure = f"the run ended before its first step\n{_tail(run.logs / f'job-{job_id}.out')}"
        return Ending(outcome=None, failure=failure, sentence="")
    if outcome.kind == "completed":
        return Ending(outcome=outcome, failure=None, sentence=f"complete at step {outcome.step}: {run.root}")
    if outcome.kind == "saved":
        stopped = f"stopped at step {outcome.step}, saved at {outcome.last_saved_step}\nto resume: {again}"
        return Ending(outcome=outcome, failure=None, sentence=stopped)
    text = f"{outcome.kind.replace('_', ' ')} at step {outcome.step}: {outcome.reason}"
    if outcome.retry:
        text += f"\nto retry from step {outcome.last_saved_step or 0}: {again}"
    log = attempt.rank_log(outcome.rank or 0)
    return Ending(outcome=outcome, failure=f"{text}\n{_tail(log)}", sentence="")


def _tail(log: Path) -> str:
    if not log.is_file():
        return ""
    lines = [one_line(line) for line in last_lines(log, LOG_LINES)]
    return "\n".join([f"last lines of {log}:", *(f"  {line}" for line in lines)]) if lines else f"{log} is empty"
