"""The pointer that `colosseum select --promote` writes: which checkpoint of a run or a sweep the next stage takes.

selected.json lies in the run folder or the sweep's folder. RUN@selected and SWEEP@selected name the checkpoint wherever
RUN@STEP does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from colosseum.atomic import write_whole
from colosseum.bundle import to_json
from colosseum.errors import RefusedInput
from colosseum.launch.runs.state_file import RunName, read_state_file
from colosseum.launch.runs.submit import find_folder, find_run
from colosseum.recipe.base import Section, Text, Whole
from colosseum.recipe.source import run_and_step
from colosseum.rundir import RunDir

WORD = "@selected"


class Selected(Section):
    """selected.json."""

    schema_: Literal["colosseum.selected/1"] = Field("colosseum.selected/1", alias="schema")
    run: RunName
    """In the same folder of runs."""
    step: Whole
    by: tuple[Text, ...]
    verdict: str


def promote(folder: Path, selected: Selected) -> Path:
    """Writes or replaces the pointer of a run or sweep."""
    path = RunDir(folder).selected
    write_whole(path, to_json(selected.model_dump(mode="json", by_alias=True)))
    return path


def run_and_step_of(text: str, runs: Path) -> tuple[str, int | None]:
    """``RUN``, ``RUN@STEP``, ``RUN@selected`` or ``SWEEP@selected`` as the run, by name or folder, and its step.

    Raises:
        RefusedInput: nothing was selected.
    """
    if not text.endswith(WORD):
        return run_and_step(text)
    name = text.removesuffix(WORD)
    try:
        folder = find_folder("sweep", name, runs)
    except RefusedInput:
        folder = find_run(name, runs).root
    pointer = RunDir(folder).selected
    if not pointer.exists():
        raise RefusedInput(f"no checkpoint of {name} was selected: colosseum select {name} --by TASK --promote")
    found = read_state_file(pointer, Selected)
    return str(folder.resolve().parent / found.run), found.step
