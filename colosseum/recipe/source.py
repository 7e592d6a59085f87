"""Where the first weights come from: the text of ``checkpoint.from``, parsed once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
STAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Fresh:
    """Random weights."""

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class FromPath:
    """A checkpoint, or a folder of a run."""

    path: str

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class FromRun:
    """A checkpoint of a run in the same runs folder."""

    run: str
    step: int | None = None
    """None = the newest."""

    def __str__(self) -> str:
        return f"run:{self.run}" if self.step is None else f"run:{self.run}@{self.step}"


@dataclass(frozen=True, slots=True)
class FromStage:
    """The run of an earlier stage; the campaign puts its name here."""

    stage: str

    def __str__(self) -> str:
        return f"stage:{self.stage}"


Source = Fresh | FromPath | FromRun | FromStage
FORMS: dict[type, str] = {Fresh: "none", FromPath: "path", FromRun: "run:RUN[@STEP]", FromStage: "stage:NAME"}
"""How each is written."""


def parse_source(text: str) -> Source:
    """``none``, ``run:RUN[@STEP]``, ``stage:NAME`` or a path; ``str`` gives the text back.

    Raises:
        PydanticCustomError: a ValueError; it begins with ``run:`` or ``stage:`` and what follows is no name.
    """
    if text == "none":
        return Fresh()
    if text.startswith("run:"):
        run, step = run_and_step(text.removeprefix("run:"))
        return FromRun(run, step) if RUN.fullmatch(run) else _refuse(text, FromRun)
    if text.startswith("stage:"):
        stage = text.removeprefix("stage:")
        return FromStage(stage) if STAGE.fullmatch(stage) else _refuse(text, FromStage)
    return FromPath(text)


def parse_reference(text: str) -> FromPath | FromRun:
    """The same of a reference policy, which has weights and is known when training starts.

    Raises:
        PydanticCustomError: a ValueError; it is none of the two.
    """
    found = parse_source(text)
    if isinstance(found, FromPath | FromRun):
        return found
    rule = "must be a path or run:RUN[@STEP]; null = checkpoint.from"
    raise PydanticCustomError("source_form", rule, {"nearest": (None,)})


def run_and_step(text: str) -> tuple[str, int | None]:
    """``RUN`` or ``RUN@STEP``: a run, by name or folder, and the checkpoint to take (None = the newest)."""
    name, _, step = text.rpartition("@")
    return (name, int(step)) if name and step.isdecimal() and len(step) < 16 else (text, None)


def _refuse(text: str, kind: type) -> Source:
    prefix, _, rest = text.partition(":")
    bare = re.sub(r"[^A-Za-z0-9._-]", "", rest.split("@")[0]).lstrip("._-")[:64]
    nearest = (f"{prefix}:{bare}",) if bare else ()
    raise PydanticCustomError("source_form", "must have the form {form}", {"form": FORMS[kind], "nearest": nearest})
