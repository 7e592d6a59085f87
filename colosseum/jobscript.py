"""Commands of the job script: ``python3 -I … COMMAND ARGUMENT…`` on the batch host, from inside the run folder.

Standard library only, Python 3.6 or later; a copy is in every bundle, with ``records.py`` and ``owner.py``.

    own JOB RESTART PID                exit code 0: the run folder is this job's; else prints whose it is
    begin ATTEMPT JOB RESTART NODES    writes the attempt's env.json; prints the step it goes on from
    saved                              the newest saved step, 0 = none
    save-seconds                       how long the newest checkpoint took, in whole seconds; nothing where not known
    fruitless ATTEMPT                  attempts before this one that began at the step saved now
    complete                           exit code 0 if an attempt completed; prints its number
    has-step STEP                      exit code 0 if metrics.jsonl has a training row of this step or a later one
    write-outcome ATTEMPT KIND RETRY RANK REASON    outcome.json, unless a rank wrote it; RANK - = of no rank
    outcome ATTEMPT                    prints KIND RETRY STEP RANK, and the reason on a line of its own
"""

import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Iterator, List  # noqa: UP035

from colosseum import owner, records
from colosseum.records import AttemptEnvironment, MetricsRow, Outcome

MAX_BYTES = 1 << 20
"""Of a record."""


def main(words: "List[str]") -> int:  # noqa: UP006
    """Runs one command in the current folder; its exit code."""
    # The words as bytes, then as UTF-8: a batch host's locale may be C, of an old Python.
    words = [os.fsencode(word).decode("utf-8", "replace") for word in words]
    code = COMMANDS[words[0]](*words[1:])
    return int(code)


def own(job: str, restart: str, pid: str) -> int:
    mine = owner.this_job(job, count_of(restart), int(pid))
    sentence = owner.take(Path.cwd(), mine)
    if sentence:
        say(sentence)
    return 1 if sentence else 0


def begin(attempt: str, job: str, restart: str, nodes: str) -> int:
    saved = saved_step()
    environment = AttemptEnvironment(int(attempt), saved, job, count_of(restart), nodes, int(time.time()))
    records.write_first(attempt_folder(attempt) / "env.json", environment.to_line())
    return say(str(saved))


def saved() -> int:
    return say(str(saved_step()))


def save_seconds() -> int:
    folder = Path("checkpoints", f"iter_{saved_step():07d}")
    mark = records.parse_object(read(folder / records.CHECKPOINT_MARK)) or {}
    seconds = records.number(mark.get("save_time_s"))
    return say("" if seconds is None else str(int(seconds)))


def fruitless(attempt: str) -> int:
    """``jobs requeue`` sets in attempts/count-from which attempts no longer count."""
    now, this = saved_step(), int(attempt)
    first = count_of(read(Path("attempts", "count-from")).decode("ascii", "replace"))
    begun = (AttemptEnvironment.from_line(read(folder / "env.json")) for folder in attempt_folders())
    return say(str(sum(e is not None and first <= e.attempt != this and e.saved_step == now for e in begun)))


def complete() -> int:
    for folder in attempt_folders():
        outcome = outcome_of(folder)
        if outcome is not None and outcome.kind == "completed":
            return say(folder.name)
    return 1


def has_step(step: str) -> int:
    try:
        file = records.open_regular(Path("metrics.jsonl"))
    except OSError:
        return 1
    with file:
        rows = (MetricsRow.from_line(line) for line in iter(lambda: file.readline(MAX_BYTES), b""))
        return 0 if any(r is not None and r.kind == "train" and r.step >= int(step) for r in rows) else 1


def write_outcome(attempt: str, kind: str, retry: str, rank: str, reason: str) -> int:
    step = saved_step()
    outcome = Outcome(kind, retry == "true", step, step, None if rank == "-" else count_of(rank), reason)
    records.write_first(attempt_folder(attempt) / "outcome.json", outcome.to_line())
    return 0


def outcome(attempt: str) -> int:
    found = outcome_of(attempt_folder(attempt))
    if found is None:
        return 1
    rank = "-" if found.rank is None else str(found.rank)
    return say("{} {} {} {}\n{}".format(found.kind, "true" if found.retry else "false", found.step, rank, found.reason))


COMMANDS: "dict[str, Any]" = {
    "own": own,
    "begin": begin,
    "saved": saved,
    "save-seconds": save_seconds,
    "fruitless": fruitless,
    "complete": complete,
    "has-step": has_step,
    "write-outcome": write_outcome,
    "outcome": outcome,
}


def saved_step() -> int:
    """The newest finished checkpoint, 0 = none.

    A foreign engine has checkpoints of its own kind: its attempts say how far they saved, and so does Megatron's own
    file, also after a crash.
    """
    steps = records.saved_steps(Path("checkpoints"))
    if steps:
        return steps[-1]
    outcomes = [outcome_of(folder) for folder in attempt_folders()]
    found = [o.last_saved_step or 0 for o in outcomes if o is not None]
    if Path("bundle", "engine", "command.json").exists():
        found.append(count_of(read(Path("checkpoints", records.LATEST_FILE)).decode("ascii", "replace")))
    return max(found, default=0)


def outcome_of(folder: Path) -> "Outcome | None":
    """As ``AttemptDir.read_outcome``: None = there is none; a damaged one is a crash."""
    path = folder / "outcome.json"
    if not os.path.lexists(str(path)):
        return None
    return Outcome.from_line(read(path)) or Outcome.damaged("outcome.json holds no outcome")


def attempt_folder(attempt: str) -> Path:
    return Path("attempts", f"{int(attempt):03d}")


def attempt_folders() -> "Iterator[Path]":
    found = (path for path in Path("attempts").glob("*") if re.match(r"[0-9]{1,15}\Z", path.name))
    return iter(sorted(found, key=lambda path: int(path.name)))


def read(path: Path) -> bytes:
    """A small file; empty if there is none or it cannot be read."""
    try:
        with records.open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError:
        return b""
    return data if len(data) <= MAX_BYTES else b""


def count_of(text: str) -> int:
    """A count in decimal digits; 0 for anything else."""
    match = re.match(r"\s*([0-9]{1,15})\s*\Z", text)
    return int(match.group(1)) if match else 0


def say(text: str) -> int:
    sys.stdout.buffer.write((text + "\n").encode("utf-8", "replace"))
    return 0
