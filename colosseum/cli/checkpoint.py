"""``colosseum checkpoint inspect|expand|import|export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from colosseum.cli.checkpoint_hf import export, import_
from colosseum.cli.output import Json, Runs, document, note, say

app = typer.Typer(no_args_is_help=True)
app.command("import")(import_)
app.command()(export)
What = Annotated[str, typer.Argument(metavar="RUN|CKPT", help="A run, RUN@STEP, or the path of a checkpoint.")]


@app.callback()
def _group() -> None:
    """Inspect, grow, import and export checkpoints."""


def _found(text: str, runs: Path | None) -> Path:
    from colosseum.checkpoint.inspect import find
    from colosseum.launch.runs.submit import find_run, runs_root
    from colosseum.recipe.load import load_cluster

    return find(text, lambda name: find_run(name, runs_root(runs, load_cluster())))


@app.command()
def inspect(
    path: What,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte; compare with the checksums.")] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List names, shapes and dtypes (needs torch).")] = False,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Say what a checkpoint is: its kind, model, step, layout and size, from metadata alone."""
    from colosseum.checkpoint.inspect import NAMES, damaged
    from colosseum.checkpoint.inspect import inspect as look
    from colosseum.errors import RunFailed
    from colosseum.units import format_bytes

    folder = _found(path, runs)
    found = look(folder, tensors=tensors)
    bad = damaged(folder) if verify else []
    if as_json:
        known = {"damaged": bad} if verify else {}
        document({"schema": "colosseum.inspected/1", **found.as_json(), **known})
        if bad:
            raise typer.Exit(RunFailed.exit_code)
        return
    say(f"{found.path}: {NAMES[found.kind]}, {format_bytes(found.bytes)}")
    for name, value in found.facts.items():
        if value not in (None, {}, []):
            say(f"  {name}: {_text(value)}")
    for name, (shape, dtype) in found.tensors.items():
        say(f"  {name} {list(shape)} {dtype}")
    if bad:
        raise RunFailed(f"{folder} is damaged: {', '.join(bad)} changed since it was written")
    if verify:
        say("every byte is what was written")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@app.command()
def expand(
    path: What,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make; checkpoint.from=OUT begins from it.")],
    layers: Annotated[int, typer.Option(help="Layers of the new model.")],
    at: Annotated[
        str, typer.Option(help="Where new layers go: evenly, end, or after which layers (24,48,72,96).")
    ] = "evenly",
    init: Annotated[
        Literal["identity", "copy", "random"],
        typer.Option(help="identity: the model computes what it did. copy: the layer before. random: new weights."),
    ] = "identity",
    optimizer: Annotated[
        Literal["carry", "zero", "drop"],
        typer.Option(help="Adam's moments: carry those of the old layers, begin all at zero, or save weights only."),
    ] = "carry",
    probe: Annotated[
        bool, typer.Option(help="Compute the logits of old and new model on this CPU and compare them.")
    ] = True,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Grow a model: write a checkpoint with more layers, and prove what it computes."""
    from colosseum.checkpoint.expand import expand as grow
    from colosseum.checkpoint.expand import model_of
    from colosseum.checkpoint.folders import read_metadata
    from colosseum.checkpoint.growth import growth
    from colosseum.checkpoint.proof import PROBE, largest_difference, parameters
    from colosseum.checkpoint.torchdist import read_index

    source = _found(path, runs)
    shape = read_metadata(source).model
    plan = growth(shape.num_layers, layers, at, init, optimizer)
    folder = grow(source, out, plan)
    before, after = (parameters(read_index(f).shapes, shape.vocab_size) for f in (source, folder))
    new = [layer + 1 for layer in plan.new_layers]
    result: dict[str, Any] = {"checkpoint": str(folder), "layers": [shape.num_layers, layers], "new_layers": new}
    result |= {"parameters": [before, after], "init": init, "optimizer": optimizer, "largest_logit_difference": None}
    model = model_of(shape) if probe else None
    if model is not None:
        result["largest_logit_difference"] = largest_difference(source, folder, model, layers)
    if as_json:
        document({"schema": "colosseum.expanded/1", **result})
        return
    say(f"{folder}: {shape.num_layers} layers → {layers}, {before:,} parameters → {after:,}")
    say(f"new layers: {', '.join(map(str, new))} ({init}); optimizer: {optimizer}")
    if model is not None:
        say(f"largest difference of a logit on {PROBE} tokens in FP32: {result['largest_logit_difference']:.3g}")
    elif probe:
        note("logits were not compared: no RoPE, or a checkpoint of a release that recorded less of its model")
    say(f"begin from it with checkpoint.from={out}")
