"""The tree of errors a user may see. Everything else is a bug of ours and exits with 1.

ColosseumError
├── RefusedInput      exit 2   the input is not valid; carries every Fault at once
├── EnvironmentFault  exit 3   the machine lacks something: Slurm, torch, a permission, disk
└── RunFailed         exit 4   the run, job or check itself failed
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

REFUSAL_SCHEMA = "colosseum.refusal/1"
INSTALL_TRAIN = "in the folder of Colosseum's source: pip install '.[train]'"
INSTALL_DATA = "in the folder of Colosseum's source: pip install '.[data]'"
"""What installs the packages that training needs; the project is not in a package index under this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One error in the input: its location, its value, the rule it breaks, and the nearest legal values."""

    path: str
    """Dotted path of the field, e.g. ``parallelism.vpp``; empty when the fault is not about one field."""
    value: Any
    """The value as the user gave it (JSON-able)."""
    rule: str
    """One sentence: what must hold."""
    nearest: tuple[Any, ...] = ()
    """Nearest legal values, best first."""
    where: str = ""
    """``file:line`` or ``command line`` that set the value."""

    def sentence(self) -> str:
        """The fault as one line of text."""
        head = f"{self.path} = {self.value!r}" if self.path else ""
        text = f"{head}: {self.rule}" if head else self.rule
        if self.nearest:
            text += f" (nearest: {', '.join(str(n) for n in self.nearest)})"
        return f"{text} [{self.where}]" if self.where else text

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "nearest": list(self.nearest)}


class ColosseumError(Exception):
    """Base of all errors shown to a user without a traceback."""

    exit_code: ClassVar[int] = 1


class RefusedInput(ColosseumError):
    """The input is refused before anything is written or submitted."""

    exit_code = 2

    def __init__(self, faults: Iterable[Fault] | str, *, subject: Any = None) -> None:
        """``subject`` is the refused object, if it could be read completely (a Recipe): for legal alternatives."""
        self.subject = subject
        self.faults: tuple[Fault, ...] = (
            (Fault(path="", value=None, rule=faults),) if isinstance(faults, str) else tuple(faults)
        )
        super().__init__("\n".join(f.sentence() for f in self.faults))

    def as_json(self) -> dict[str, Any]:
        """The refusal document of docs/contracts.md."""
        return {"schema": REFUSAL_SCHEMA, "faults": [f.as_json() for f in self.faults]}


class EnvironmentFault(ColosseumError):
    """The machine cannot do it: a command, package, permission or disk space is missing."""

    exit_code = 3


class RunFailed(ColosseumError):
    """A run, a job or a check failed; the message says which and why."""

    exit_code = 4
