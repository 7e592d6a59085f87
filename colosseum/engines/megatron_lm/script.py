"""Options of a Megatron-LM program, from an argument line or from a job script that holds one (``bash``). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from colosseum.engines.foreign_options import megatron_options
from colosseum.engines.megatron_lm.bash import Command, Script, follow

_PROGRAM = re.compile(r"(?:.*/)?pretrain_\w+\.py")


@dataclass(slots=True)
class Program:
    """The command that trains."""

    options: dict[str, list[str]] = field(default_factory=dict)
    """Values by option; the last of an option counts, as for argparse."""
    stray: list[str] = field(default_factory=list)
    """Words that belong to no option."""
    launcher: tuple[str, ...] = ()
    """Words before the program: srun, torchrun and their options."""
    doubts: tuple[str, ...] = ()
    """Conditions that only a run decides, on which the options depend."""
    problems: tuple[str, ...] = ()
    """What of the script could not be read."""


def program(text: str) -> Program:
    """The command of a script with the most options after ``pretrain_….py``; of a list of options, all of them."""
    script = follow(text)
    found = [_program(command, place) for command in script.commands if (place := _place(command.words)) is not None]
    problems = list(script.problems)
    if not found:
        return _options(_bare(script), problems=tuple(problems))
    best = max(found, key=lambda each: len(each.options))
    others = [each for each in found if each.options and each.options != best.options]
    if others:
        problems.append(f"the script trains {len(others) + 1} times with different options; the longest was read")
    best.problems = tuple(problems)
    return best


def _place(words: Sequence[str]) -> int | None:
    return next((i for i, word in enumerate(words) if _PROGRAM.fullmatch(word)), None)


def _program(command: Command, place: int) -> Program:
    found = _options(command.words[place + 1 :])
    found.launcher = (*command.outer, *command.words[:place])
    found.doubts = tuple(sorted(command.doubts))
    return found


def _bare(script: Script) -> list[str]:
    """Words of a file that names no program: lines of options, else variables that hold options."""
    lines = [word for command in script.commands for word in command.words]
    if any(word.startswith("--") for word in lines):
        return lines
    held = [" ".join(variable.words) for variable in script.names.values()]
    return [word for text in held if text.lstrip().startswith("--") for word in text.split()]


def _options(words: Iterable[str], problems: tuple[str, ...] = ()) -> Program:
    found, option, room = Program(problems=problems), "", 0.0
    known = megatron_options()
    for word in words:
        if word.startswith("--") and len(word) > 2:
            option, equals, value = word.partition("=")
            found.options[option] = [value] if equals else []
            takes = known[option]["values"] if option in known else "*"
            room = 0 if equals else {"0": 0, "1": 1, "?": 1}.get(takes, float("inf"))
        elif room > 0:
            found.options[option].append(word)
            room -= 1
        else:
            found.stray.append(word)
    return found
