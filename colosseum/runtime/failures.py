"""Why a run failed, and whether it may be retried."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import ClassVar

from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.rundir import EXIT_COMPLETE, EXIT_FINAL, EXIT_SAVED, OutcomeKind

EXIT_CRASH = 70


class RunFailure(Exception):
    """The run cannot continue; the message is one sentence."""

    kind: ClassVar[OutcomeKind] = "crash"


class DataFailure(RunFailure):
    """The data are missing, broken, or not what the recipe says."""

    kind = "data_error"


class NumericFailure(RunFailure):
    """The loss or a gradient is not finite."""

    kind = "numeric_error"


class ConfigFailure(RunFailure):
    """The recipe does not fit what it names: a checkpoint, a tokenizer."""

    kind = "config_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The content of outcome.json for an exception."""

    kind: OutcomeKind
    retry: bool
    reason: str


def judge(error: BaseException) -> Verdict:
    """Kind, whether to start again, and one sentence."""
    if isinstance(error, RunFailure):
        return Verdict(kind=error.kind, retry=False, reason=str(error))
    if isinstance(error, RefusedInput | EnvironmentFault):
        return Verdict(kind="config_error", retry=False, reason=str(error))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" at {error.filename}" if error.filename else ""
        return Verdict(
            kind="crash", retry=False, reason=f"no space is left on the disk{where}: free some space, then resume"
        )
    for cause in causes_of(error):
        if cause is not error and isinstance(cause, OSError | RunFailure):
            return judge(cause)
    text = " ".join(str(error).split())[:500]
    if "out of memory" in text.lower():
        return Verdict(kind="crash", retry=False, reason=f"out of GPU memory: {text}")
    if "no space left on device" in text.lower() or "disk quota exceeded" in text.lower():
        return Verdict(kind="crash", retry=False, reason="no space is left on the disk: free some space, then resume")
    return Verdict(kind="crash", retry=True, reason=f"{type(error).__name__}: {text}" if text else type(error).__name__)


def causes_of(error: BaseException) -> list[BaseException]:
    """The exception and those it came from; ``raise … from None`` says that it came from none."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return found


def exit_code(kind: OutcomeKind, *, retry: bool) -> int:
    """The runtime's exit codes of docs/contracts.md."""
    if kind == "completed":
        return EXIT_COMPLETE
    if kind == "saved":
        return EXIT_SAVED
    return EXIT_CRASH if retry else EXIT_FINAL
