"""GPUs and time limit of a job script: ``#SBATCH`` lines, and the options of srun and torchrun. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from colosseum.engines.importing import HARMLESS, UNREAD, Finding, Imported
from colosseum.engines.megatron_lm.bash_values import is_plain, shown
from colosseum.engines.slurm_time import slurm_seconds, written_duration

_LONG = {
    **{"-N": "--nodes", "-G": "--gpus", "-n": "--ntasks", "-t": "--time"},
    **{"--nproc_per_node": "--nproc-per-node"},
}
_READ = (
    *("--nodes", "--gpus", "--gpus-per-node", "--gpus-per-task", "--gres", "--ntasks", "--ntasks-per-node", "--time"),
    *("--nproc-per-node", "--nnodes"),
)


def resources(found: Imported, text: str, launcher: Sequence[str]) -> None:
    """Fills ``resources.*``; options of srun stand above directives, as for Slurm."""
    live, dead = directives(text)
    for line in dead:
        reason = "below the first command: Slurm does not read it"
        found.findings.append(Finding(key=f"#SBATCH {line}", value="", kind=HARMLESS, reason=reason))
    options = {**_options([word for line in live for word in _split(line)]), **_options(launcher)}
    gpus, each = _gpus(found, options, under_srun="srun" in launcher or bool(live))
    if gpus is not None:
        found.fields["resources.gpus"] = gpus
    if each is not None:
        found.fields["resources.gpus_per_node"] = each
    if (limit := options.get("--time")) is not None:
        seconds = slurm_seconds(limit)
        if seconds:
            found.fields["resources.time_limit"] = written_duration(seconds)
        else:
            found.findings.append(Finding(key="--time", value=shown(limit), kind=UNREAD))


def directives(text: str) -> tuple[list[str], list[str]]:
    """``#SBATCH`` lines above the first command, and those below it, which Slurm ignores."""
    live: list[str] = []
    dead: list[str] = []
    now = live
    for line in text.splitlines():
        if match := re.match(r"#SBATCH\s+(.*)", line):
            now.append(match[1].strip())
        elif line.strip() and not line.lstrip().startswith("#"):
            now = dead
    return live, dead


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


def _options(words: Sequence[str]) -> dict[str, str]:
    """Values by long name; the last counts."""
    found: dict[str, str] = {}
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if re.fullmatch(r"-[NGnt]\w.*", word) and not word.startswith("--"):
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
        name = _LONG.get(name, name)
        if name in _READ and (equals or i + 1 < len(words)):
            found[name] = value if equals else words[i + 1]
    return found


def _gpus(found: Imported, options: Mapping[str, str], *, under_srun: bool) -> tuple[int | None, int | None]:
    """GPUs in all and per node: from the options about GPUs, then torchrun's processes, then Slurm's tasks."""
    unread: set[str] = set()

    def number(name: str) -> int | None:
        text = options.get(name)
        if text is None:
            return None
        value = _count(text, gres=name == "--gres")
        if value is None and name not in unread:
            unread.add(name)
            found.findings.append(Finding(key=name, value=shown(text), kind=UNREAD))
        return value

    tasks = number("--ntasks-per-node")
    per_task = number("--gpus-per-task")
    by_tasks = tasks * per_task if tasks and per_task else None
    each = number("--gpus-per-node") or number("--gres") or by_tasks or number("--nproc-per-node") or tasks
    nodes = number("--nodes") or number("--nnodes") or (None if under_srun else 1)
    total = number("--gpus")
    if total is None and per_task and (count := number("--ntasks")):
        total = per_task * count
    if total is None and nodes and each:
        total = nodes * each
    if each is None and total and nodes and total % nodes == 0:
        each = total // nodes
    return total, each


def _count(text: str, *, gres: bool) -> int | None:
    """``8``, ``h100:8``, ``4-4``; of ``--gres`` the GPUs alone. None: unread, or a range with two ends."""
    if not is_plain(text):
        return None
    if gres:
        entries = [entry.strip() for entry in text.split(",") if re.match(r"\s*gpu(?::|$)", entry)]
    else:
        entries = text.split(",")
    counts = [1 if entry == "gpu" else _last_number(entry) for entry in entries]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _last_number(entry: str) -> int | None:
    text = entry.rpartition(":")[2].partition("(")[0]
    low, dash, high = text.partition("-")
    if dash and low != high:
        return None
    return int(low) if re.fullmatch(r"\d{1,7}", low) else None
