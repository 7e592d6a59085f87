"""One rank of a foreign engine: starts it, forwards stop signals, writes metrics.jsonl and outcome.json.

A copy of this file is in every bundle of a foreign engine and runs inside that engine's container: standard library
only, Python 3.10 or later; of Colosseum it imports the bundle's own copies of ``records.py``, ``owner.py`` and
``jobscript.py``, nothing else. What it does is said by ``command.json`` beside it:

    program      path of the engine's script, below ``home``; or a path inside the bundle
    home         {variable, default}: the environment variable that names the engine's checkout, and where it else is
    image        an image that holds the engine, as enroot imports it
    arguments    the script's arguments
    first        more of them, when this run has no checkpoint yet
    env          variables to set unless the environment has them
    patterns     kind of a metrics row -> {key -> regular expression with one group}; a line that has ``step`` is a row
    scales       key -> factor to base units
    constants    numbers of the recipe that a row is completed with: gbs, tokens_per_step
    first_step   what the log calls the first step
    stop_at_nan  whether a loss that is not a number ends the run
    total_steps  the run is complete when this step was logged or saved; 0 = not known: its own end is the end
    may_drop_steps  so many fewer are complete as well, if nobody asked the engine to stop: it may drop the last,
                 partial batch of an epoch
    checkpoints  {folder, glob, pattern, counts}: names of checkpoints, finished unless NAME-unfinished stands beside
                 one; the group counts steps or samples; no pattern = the engine keeps the tracker file itself
    continues    what ``continue_from.py`` is told before the first attempt; null = nothing: no optimizer is loaded
    checks       what ``check_config.py`` is told before the first attempt; null = nothing: the engine is not asked
    names        of the files of a run folder

Exit codes are docs/contracts.md's: 0 complete, 75 saved, 76 not to be started again, else the engine's own.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))
sys.dont_write_bytecode = True  # a bundle never changes
from colosseum import jobscript, owner  # noqa: E402
from colosseum.records import (  # noqa: E402
    AttemptEnvironment,
    MetricsRow,
    Outcome,
    append,
    open_regular,
    write_first,
)

SAVED, FINAL = 75, 76
MAX_LINE = 1 << 20
CHECK_ENDS_WITHIN_S = 300.0
LOG_ENDS_WITHIN_S = 10.0
"""The rank that shows the log may be so much later than the first rank."""
NOT_A_NUMBER = re.compile(r"found NaN|Unexpected result nan|loss is nan", re.IGNORECASE)


def main() -> int:
    command = json.loads((HERE / "command.json").read_text())
    rank = int(os.environ.get("RANK", "0"))
    by_hand = "COLOSSEUM_ATTEMPT" not in os.environ
    if by_hand:
        code, refused = begin_by_hand(command, rank)
        if refused:
            sys.stderr.write(refused + "\n")
            return code
    program, problem = find_program(command)
    if problem:
        # Every rank: the first bad exit ends them all, and that need not be rank 0's.
        if rank == 0 or not by_hand:
            write_outcome(command, "config_error", False, problem, rank=rank)
        sys.stderr.write(problem + "\n")
        return FINAL
    words = [sys.executable, "-u", str(program), *command["arguments"]]
    began = saved_step(command)
    if not began:
        words += command["first"]
        # The other ranks' engines wait for rank 0's before they read a checkpoint.
        problem = (checked(command) or link_checkpoint(command, program)) if rank == 0 else ""
        if problem:
            write_outcome(command, "config_error", False, problem)
            sys.stderr.write(problem + "\n")
            return FINAL
    env = {**command["env"], **os.environ}
    # errors=replace: a torn byte in a log must not end a training run.
    child = subprocess.Popen(
        words,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=ignore_usr1,
    )
    asked = pass_signals_on(child)
    step, broken = follow(child, command)
    code = child.wait()
    if rank == 0:
        note_checkpoint(command)
    return settle(command, rank, code, began=began, step=step, asked=bool(asked), broken=broken)


def begin_by_hand(command: dict[str, Any], rank: int) -> tuple[int, str]:
    """What a launcher does where there is none (``torchrun … bundle/engine/start.py``, typed in a run folder).

    The first rank takes the run folder and begins an attempt; the others need its number only once the engine trains.

    Returns:
        The exit code and a sentence where nothing is to be started; "" = start.
    """
    ended = [jobscript.outcome_of(folder) for folder in jobscript.attempt_folders()]
    if any(outcome is not None and outcome.kind == "completed" for outcome in ended):
        return 0, f"{Path.cwd().name} is complete: nothing to do"
    if rank:
        return 0, ""
    whose = owner.take(Path.cwd(), owner.this_process())
    if whose:
        return FINAL, whose
    number = newest_attempt(command) + 1
    folder = attempt_folder(command, number)
    (folder / "stacks").mkdir(parents=True)
    saved, now = saved_step(command), int(time.time())
    environment = AttemptEnvironment(number, saved, str(os.getpid()), 0, socket.gethostname(), now)
    write_first(folder / "env.json", environment.to_line())
    os.environ["COLOSSEUM_ATTEMPT"] = str(number)
    return 0, ""


def this_attempt(command: dict[str, Any]) -> int:
    """The attempt's number: a launcher has said it, else it is the newest, once the engine trains."""
    given = os.environ.setdefault("COLOSSEUM_ATTEMPT", str(max(0, newest_attempt(command))))
    return int(given)


def newest_attempt(command: dict[str, Any]) -> int:
    """-1 = there is none."""
    names = [path.name for path in Path(command["names"]["attempts"]).glob("*")]
    return max((int(name) for name in names if re.fullmatch("[0-9]{1,15}", name)), default=-1)


def attempt_folder(command: dict[str, Any], number: int) -> Path:
    return Path(command["names"]["attempts"]) / f"{number:03d}"


def find_program(command: dict[str, Any]) -> tuple[Path | None, str]:
    """The engine's script, or one sentence why there is none."""
    home = command["home"]
    if home is None:
        return HERE / command["program"], ""
    root = Path(os.environ.get(home["variable"], home["default"]))
    program = root / command["program"]
    if program.is_file():
        return program, ""
    return None, (
        "{} does not exist: this run needs a container with {} (cluster file: container; to import one: "
        "enroot import -o nemo.sqsh {}), or {} set to its checkout (cluster file: env.{})".format(
            program, command["engine"], command["image"], home["variable"], home["variable"]
        )
    )


def checked(command: dict[str, Any]) -> str:
    """One sentence if the engine's own code would train with other values than the launch has."""
    if command["checks"] is None:
        return ""
    words = [sys.executable, "-I", str(HERE / "check_config.py")]
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, errors="replace", timeout=CHECK_ENDS_WITHIN_S)
        changed = json.loads(done.stdout)["changed"]
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        # It may need what only the engine's own start has: the run is not stopped for that.
        sys.stdout.write("the configuration could not be compared with what the engine makes of it\n")
        return ""
    if not changed:
        return ""
    shown = "; ".join("{field} = {said} becomes {is}".format(**one) for one in changed[:8])
    return "{} would not train with this launch's values: {}".format(command["engine"], shown)


def link_checkpoint(command: dict[str, Any], program: Path | None) -> str:
    """Makes the folder that the engine loads another run's weights and optimizer from; or one sentence why not."""
    if command["continues"] is None:
        return ""
    checkout = [] if command["home"] is None or program is None else [str(program.parent)]
    words = [sys.executable, "-I", str(HERE / "continue_from.py"), *checkout]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode == 0:
        return ""
    sys.stdout.write(done.stdout)
    last = done.stdout.strip().rpartition("\n")[2]
    return "cannot continue from {}: {}".format(command["continues"]["from"], last)


def ignore_usr1() -> None:
    """In the child: Slurm sends USR1 to every process of a step, and it would end an engine that has no handler."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def pass_signals_on(child: subprocess.Popen[str]) -> list[int]:
    """USR1 and TERM mean: save and leave, which the engines hear as TERM. Returns the list of signals seen."""
    asked: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)

    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, handler)
    return asked


def follow(child: subprocess.Popen[str], command: dict[str, Any]) -> tuple[int, str]:
    """Copies the log to our own output; its rows go to metrics.jsonl as they come. The last step, and what broke."""
    patterns = {kind: {k: re.compile(p) for k, p in keys.items()} for kind, keys in command["patterns"].items()}
    step, broken = 0, ""
    for line in child.stdout or ():
        sys.stdout.write(line)
        sys.stdout.flush()
        if NOT_A_NUMBER.search(line):
            broken = line.strip()[:300]
        for kind, keys in patterns.items():
            values = row_of(line, keys, command)
            if values is None:
                continue
            if values["loss"] != values["loss"] and command["stop_at_nan"] and not broken:
                broken = "the loss at step {} is not a number".format(values["step"])
                child.kill()
            if kind != "train" or values["step"] > step:  # a progress bar is printed again and again
                append_row(command, kind, values)
            step = max(step, values["step"])
            break
    return step, broken


def row_of(line: str, keys: dict[str, re.Pattern[str]], command: dict[str, Any]) -> dict[str, Any] | None:
    """Values of a line by metrics key, in base units; None when it is not a row."""
    found = {key: pattern.search(line) for key, pattern in keys.items()}
    if found["step"] is None or found["loss"] is None:
        return None
    values: dict[str, Any] = {
        key: float(match[1]) * command["scales"].get(key, 1.0) for key, match in found.items() if match
    }
    values["step"] = int(values["step"]) + 1 - command["first_step"]
    return values


def append_row(command: dict[str, Any], kind: str, values: dict[str, Any]) -> None:
    constants, step = command["constants"], values["step"]
    row = {key: value for key, value in values.items() if math.isfinite(value)}
    if kind == "train":
        row["consumed_samples"] = step * constants["gbs"]
        row["consumed_tokens"] = step * constants["tokens_per_step"]
        if row.get("step_time_s"):
            row["tokens_per_s"] = constants["tokens_per_step"] / row["step_time_s"]
        row["skipped"] = False
    line = MetricsRow(kind, step, this_attempt(command), round(time.time(), 3), row).to_line()
    append(Path(command["names"]["metrics"]), line)


def saved_step(command: dict[str, Any]) -> int:
    """Step of the newest finished checkpoint of this run, 0 = none."""
    where = command["checkpoints"]
    folder = Path(where["folder"])
    if where["pattern"] is None:  # the engine keeps Megatron's tracker file itself
        tracker = folder / command["names"]["tracker"]
        text = tracker.read_text().strip() if tracker.is_file() else ""
        return int(text) if text.isdigit() else 0
    per_step = command["constants"]["gbs"] if where["counts"] == "samples" else 1
    finished = (path.name for path in folder.glob(where["glob"]) if not Path(f"{path}-unfinished").exists())
    matches = (re.search(where["pattern"], name) for name in finished)
    return max((int(match[1]) // per_step for match in matches if match), default=0)


def note_checkpoint(command: dict[str, Any]) -> None:
    """Leaves the newest step where the job script looks for it, under Megatron's own name."""
    folder, step = Path(command["names"]["checkpoints"]), saved_step(command)
    if command["checkpoints"]["pattern"] is not None and step:
        folder.mkdir(exist_ok=True)
        (folder / command["names"]["tracker"]).write_text(str(step))


def settle(command: dict[str, Any], rank: int, code: int, *, began: int, step: int, asked: bool, broken: str) -> int:
    """The exit code, and outcome.json from the rank that shows the log or is the first; the first writer wins.

    ``began`` is the checkpoint that the attempt went on from, ``step`` the last one that this rank's log showed.
    """
    if broken:
        write_outcome(command, "numeric_error", False, broken, step=step, rank=rank)
        return FINAL
    if code:
        return code if code > 0 else 128 - code
    if rank and not step:
        return SAVED if asked else 0
    step = step or shown_step(command)
    kind, retry, reason = ending(command, began=began, step=step, saved=saved_step(command), asked=asked)
    write_outcome(command, kind, retry, reason, step=step, rank=rank)
    return 0 if kind == "completed" else SAVED if retry else FINAL


def ending(command: dict[str, Any], *, began: int, step: int, saved: int, asked: bool) -> tuple[str, bool, str]:
    """Kind, retry and reason of an engine that ended with exit code 0."""
    done, total, engine = max(step, saved), command["total_steps"], command["engine"]
    if total and done >= total:
        return "completed", False, "every step was done"
    if asked:
        return "saved", True, "stopped on request"
    planned = f" of {total} planned" if total else ""
    if done and done >= total - command["may_drop_steps"]:
        return "completed", False, f"{engine} ended by itself at step {done}{planned}"
    if step or saved > began:  # such as NeMo's max_time_per_run
        return "saved", True, f"{engine} ended by itself at step {done}{planned}: it is started again"
    if saved:
        return "completed", False, f"{engine} had nothing left to do after step {saved}{planned}"
    return "crash", False, f"{engine} ended with exit code 0 and trained no step: see its log"


def shown_step(command: dict[str, Any]) -> int:
    """The last step of another rank's log, read to its end: judged too early, a complete run would be started again."""
    deadline = time.monotonic() + LOG_ENDS_WITHIN_S
    total = command["total_steps"]
    outcome = attempt_folder(command, this_attempt(command)) / command["names"]["outcome"]
    while int(os.environ.get("WORLD_SIZE", "1")) > 1 and time.monotonic() < deadline:
        if outcome.exists() or (total and logged_step(command) >= total):
            break
        time.sleep(0.2)
    return logged_step(command)


def logged_step(command: dict[str, Any]) -> int:
    """The last training step of this attempt in metrics.jsonl: which rank shows the log differs by engine."""
    attempt, last = this_attempt(command), 0
    try:
        file = open_regular(Path(command["names"]["metrics"]))
    except OSError:
        return 0
    with file:
        for row in map(MetricsRow.from_line, iter(lambda: file.readline(MAX_LINE), b"")):
            if row is not None and row.kind == "train" and row.attempt == attempt:
                last = max(last, row.step)
    return last


def write_outcome(command: dict[str, Any], kind: str, retry: bool, reason: str, step: int = 0, rank: int = 0) -> None:
    saved = saved_step(command)
    outcome = Outcome(kind, retry, step or saved, saved, rank, reason)
    attempt = attempt_folder(command, this_attempt(command))
    attempt.mkdir(parents=True, exist_ok=True)
    write_first(attempt / command["names"]["outcome"], outcome.to_line())


if __name__ == "__main__":
    sys.exit(main())
