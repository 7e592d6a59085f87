"""``colosseum checkpoint``: inspect and expand here, the other commands beside it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from colosseum.checkpoint.expansion import PROBE, grow
from colosseum.checkpoint.inspect import damaged, inspected_text
from colosseum.checkpoint.inspect import inspect as inspected
from colosseum.cli.arguments import CheckpointWord
from colosseum.cli.checkpoint_hf import checkpoint_of, export, import_
from colosseum.cli.checkpoint_kept import average, copy, prune
from colosseum.cli.checkpoint_probe import probe
from colosseum.cli.output import Json, Runs, emit, note, say
from colosseum.errors import RunFailed

app = typer.Typer(no_args_is_help=True)
app.command("import")(import_)
app.command()(export)
app.command()(average)
app.command()(probe)
app.command()(copy)
app.command()(prune)


@app.callback()
def _group() -> None:
    """Inspect, grow, average, copy, prune, import and export checkpoints."""


@app.command()
def inspect(
    path: CheckpointWord,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and verify the checksums.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List names, shapes and dtypes (needs torch).")] = False,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Show the format, model, step, layout and size of a checkpoint, from metadata alone."""
    folder = checkpoint_of(path, runs)
    found = inspected(folder, tensors=tensors)
    bad = damaged(folder) if verify else []
    failure = RunFailed(f"{folder} is damaged: {', '.join(bad)} changed since it was written") if bad else None
    result = {"schema": "colosseum.inspected/1", **found.as_json(), **({"damaged": bad} if verify else {})}
    emit(as_json, result, lambda: inspected_text(found, sound=verify and not bad), failure)


@app.command()
def expand(
    path: CheckpointWord,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder to create; start from it with checkpoint.from=OUT.")
    ],
    layers: Annotated[int, typer.Option(help="Layers of the new model.")],
    at: Annotated[
        str,
        typer.Option(help="Positions of new layers: evenly, end, or a list of layers to insert after (24,48,72,96)."),
    ] = "evenly",
    init: Annotated[
        Literal["identity", "copy", "random"],
        typer.Option(
            metavar="KIND",
            help="identity: the model's output does not change. copy: copies the layer before. random: new weights.",
        ),
    ] = "identity",
    optimizer: Annotated[
        Literal["carry", "zero", "drop"],
        typer.Option(
            help="Adam's moments: carry those of the old layers, reset all to zero, or drop them (weights only)."
        ),
    ] = "carry",
    probe: Annotated[bool, typer.Option(help="Compare the logits of old and new model, computed on the CPU.")] = True,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Grow a model: write a checkpoint with more layers, and compare its logits."""
    grown = grow(checkpoint_of(path, runs), out, layers, at, init, optimizer, probe=probe)
    (layers_before, _), (before, after) = grown.layers, grown.parameters
    new, difference = ", ".join(map(str, grown.new_layers)), grown.largest_logit_difference

    def show() -> None:
        say(f"{grown.checkpoint}: {layers_before} layers → {layers}, {before:,} parameters → {after:,}")
        say(f"new layers: {new} ({init}); optimizer: {optimizer}")
        if difference is not None:
            say(f"largest difference of a logit on {PROBE} tokens in FP32: {difference:.3g}")
        elif probe:
            note("logits were not compared: no RoPE, or a checkpoint of an older release")
        say(f"start from it with checkpoint.from={out}")

    result = {"schema": "colosseum.expanded/1", **asdict(grown), "checkpoint": str(grown.checkpoint)}
    emit(as_json, result, show)
