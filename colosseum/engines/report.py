"""The engines as text: what each trains, and which of them can run a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from colosseum.console import columns
from colosseum.engines.registry import ENGINES
from colosseum.errors import Fault


def engines_text() -> list[RenderableType]:
    """Every engine with its limits."""
    parts: list[RenderableType] = []
    for name, engine in ENGINES.items():
        about = engine.about
        rows = [
            ("tasks", ", ".join(about.tasks)),
            ("FP8", ", ".join(about.fp8)),
            ("context parallel", about.cp),
            ("container", str(about.releases or "any with this package, such as docker/Dockerfile.mcore")),
            ("starts from", about.reads),
        ]
        table = columns(rows, padding=(0, 2, 0, 2))
        table.columns[0].no_wrap = True
        parts += [Text(name, style="bold").append(f"  {about.title}", style="not bold"), table]
    return parts


def faults_text(faults: Mapping[str, Sequence[Fault]], chosen: str) -> list[RenderableType]:
    """Which engines can run a recipe, and why the others cannot.

    Args:
        faults: by engine.
        chosen: the recipe's engine.
    """
    parts: list[RenderableType] = []
    for engine, found in faults.items():
        mark = "can run it" if not found else "cannot:"
        its = " (the recipe's)" if engine == chosen else ""
        parts.append(Text(engine, style="bold").append(f"{its}  {mark}", style="not bold"))
        parts += [Text(f"  {fault.sentence()}") for fault in found]
    return parts
