"""``colosseum``: the table of verbs. A verb's module is imported when that verb is typed, so that ``--help`` is quick.

A new verb is one line in ``VERBS``; its target is a Typer app (a noun with verbs of its own) or a plain function.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from colosseum import __version__
from colosseum.cli import failures
from colosseum.errors import EnvironmentFault, Fault, RefusedInput
from colosseum.terminal import is_text

HELP_OPTIONS = ["--help", "-h"]
RECIPES, RUNS, MACHINES, DATA = "Recipes", "Runs", "Machines", "Data"


@dataclass(frozen=True, slots=True)
class Verb:
    """One word after ``colosseum``."""

    name: str
    target: str
    """``module:attribute``."""
    help: str
    panel: str


VERBS = (
    Verb("recipes", "colosseum.cli.recipes:recipes", "List the shipped recipes.", RECIPES),
    Verb("show", "colosseum.cli.recipes:show", "Print a recipe with all values resolved.", RECIPES),
    Verb("validate", "colosseum.cli.recipes:validate", "Check a recipe; reports all errors at once.", RECIPES),
    Verb(
        "explain",
        "colosseum.cli.explain:explain",
        "Show where a value comes from and its name in each engine.",
        RECIPES,
    ),
    Verb("diff", "colosseum.cli.diff:diff", "Compare two recipes.", RECIPES),
    Verb("plan", "colosseum.cli.plan:plan", "Choose a layout; predict memory, time and cost.", RECIPES),
    Verb("engines", "colosseum.cli.engines:engines", "List the training engines and what each can run.", RECIPES),
    Verb(
        "import-config",
        "colosseum.cli.import_config:import_config",
        "Read a NeMo or Megatron-LM configuration.",
        RECIPES,
    ),
    Verb("schema", "colosseum.cli.schema:schema", "Print the JSON Schema of recipe files (for editors).", RECIPES),
    Verb("train", "colosseum.cli.train:app", "Continue pretraining a model.", RUNS),
    Verb("align", "colosseum.cli.align:app", "Fine-tune a model: SFT, DPO.", RUNS),
    Verb("rehearse", "colosseum.cli.rehearse:rehearse", "Run a small version of a recipe on this machine's CPU.", RUNS),
    Verb("bundle", "colosseum.cli.bundle:app", "Verify or replay a launch bundle.", RUNS),
    Verb("jobs", "colosseum.cli.jobs:app", "Monitor, stop and restart runs.", RUNS),
    Verb("watch", "colosseum.cli.watch:watch", "Follow a run or campaign in the terminal.", RUNS),
    Verb("report", "colosseum.cli.report:report", "Report on runs: goodput, curves, restarts, one page.", RUNS),
    Verb("campaign", "colosseum.cli.campaign:app", "Run several stages in sequence.", RUNS),
    Verb(
        "calibrate",
        "colosseum.cli.calibrate:calibrate",
        "Measure this machine, or fit a run, for accurate plans.",
        MACHINES,
    ),
    Verb("cluster", "colosseum.cli.cluster:app", "List and check clusters.", MACHINES),
    Verb(
        "preflight",
        "colosseum.cli.preflight:preflight",
        "Check this machine's health, as Slurm's Prolog can.",
        MACHINES,
    ),
    Verb("nodes", "colosseum.cli.nodes:nodes", "Show the nodes' checks and propose which to exclude.", MACHINES),
    Verb("generate", "colosseum.cli.generate:generate", "Generate responses to prompts, or chat.", DATA),
    Verb("evaluate", "colosseum.cli.evaluate:evaluate", "Score a checkpoint by lm-evaluation-harness.", DATA),
    Verb("select", "colosseum.cli.select:select", "Evaluate and compare all checkpoints of a run or sweep.", DATA),
    Verb("fp8", "colosseum.cli.fp8:app", "See what FP8 would lose of a model, by layer.", DATA),
    Verb("checkpoint", "colosseum.cli.checkpoint:app", "Inspect, grow, average, copy and convert checkpoints.", DATA),
    Verb("data", "colosseum.cli.data:app", "Prepare and check training data.", DATA),
)


class LazyGroup(TyperGroup):
    """Help and completion of the first word need only names; the command behind one is loaded to run it."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands = {v.name: TyperCommand(v.name, help=v.help, rich_help_panel=v.panel) for v in VERBS}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, placeholder and load_verb(str(name)), rest


def load_verb(name: str) -> Any:
    """The command of a verb, whose module is imported."""
    verb = next(v for v in VERBS if v.name == name)
    module, _, attribute = verb.target.partition(":")
    target = getattr(import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(name)(target)
        target = app
    target._add_completion = False  # the options --install-completion stand at the top only
    command = typer.main.get_command(target)
    command.name = name
    _as_written(command)
    return command


def _as_written(command: Any) -> None:
    """Help texts appear as they are written: brackets are no markup, and a paragraph's lines are joined."""
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(text.split()) for text in paragraphs).replace("[", "\\[")
    for parameter in command.params:
        if text := getattr(parameter, "help", None):
            parameter.help = text.replace("[", "\\[")
    command.context_settings["help_option_names"] = HELP_OPTIONS
    for child in getattr(command, "commands", {}).values():
        _as_written(child)


app = typer.Typer(
    cls=LazyGroup,
    context_settings={"help_option_names": HELP_OPTIONS},
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"colosseum {__version__}\n")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Declarative training recipes for large language models.

    A recipe is checked, planned, compiled into a launch bundle and run, on this machine or on a Slurm cluster.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code of docs/contracts.md."""
    words = list(sys.argv[1:] if argv is None else argv)

    def run() -> Any:
        closed = _ready_streams()
        if closed:
            raise EnvironmentFault("stdout is closed: the result cannot be written")
        _refuse_odd(words)
        return typer.main.get_command(app).main(words, prog_name="colosseum", standalone_mode=False)

    return failures.guarded(run, words)


def _ready_streams() -> bool:
    """Makes stdout and stderr take any character, whatever their encoding; True if stdout is closed.

    A closed stream becomes the null device: the next file that is opened would take its number, and output land in it.
    """
    closed = sys.stdout is None
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
        if reconfigure := getattr(getattr(sys, name), "reconfigure", None):
            reconfigure(errors="backslashreplace")
    return closed


def _refuse_odd(words: Sequence[str]) -> None:
    """Raises RefusedInput: a word is empty, which is a shell variable without a value, or no UTF-8."""
    faults = []
    for word in words:
        rule = ""
        if not word or (word.startswith("--") and word.endswith("=") and word.count("=") == 1):
            rule = "an argument is empty; is a shell variable not set?"
        elif not is_text(word):
            rule = "arguments must be UTF-8"
        if rule:
            faults.append(Fault(path="", value=word, rule=f"{word!r}: {rule}", where="command line"))
    if faults:
        raise RefusedInput(faults)


if __name__ == "__main__":
    sys.exit(main())
