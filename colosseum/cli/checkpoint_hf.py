"""``colosseum checkpoint import`` and ``export``: of Hugging Face, Megatron-LM and NeMo 1.x."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from colosseum.checkpoint.hf.recipe import sft_recipe
from colosseum.checkpoint.hf.source import read_folder
from colosseum.checkpoint.inspect import find
from colosseum.cli.arguments import CheckpointWord
from colosseum.cli.output import Cluster, Json, Runs, counter, emit, refuse_existing, say, warn, write_new
from colosseum.errors import INSTALL_TRAIN, EnvironmentFault, Fault, RefusedInput
from colosseum.launch.runs.jobs import runs_folder
from colosseum.launch.runs.selected import WORD, run_and_step_of
from colosseum.launch.runs.submit import find_run
from colosseum.units import format_bytes

IMPORT_SCHEMA, EXPORT_SCHEMA = "colosseum.checkpoint-import/1", "colosseum.checkpoint-export/1"
In = Annotated[
    Literal["hf", "megatron", "nemo"],
    typer.Argument(metavar="hf|megatron|nemo", help="Format of the model: Hugging Face, Megatron-LM, NeMo 1.x."),
]
Out = Annotated[
    Literal["hf", "megatron"],
    typer.Argument(metavar="hf|megatron", help="Format to write: for Hugging Face or for Megatron-LM."),
]
Dtype = Annotated[
    Literal["bf16", "fp32"] | None, typer.Option("--dtype", help="dtype of the written weights. Default: unchanged.")
]


def import_(
    kind: In,
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|FILE",
            help="hf: folder with config.json and *.safetensors. megatron: iter_N or its parent. nemo: FILE.nemo.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Checkpoint folder to write.")],
    recipe_out: Annotated[
        Path | None, typer.Option("--recipe-out", metavar="FILE", help="Also write an SFT recipe for the model.")
    ] = None,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Convert a model of another tool to a checkpoint; use it with `checkpoint.from=OUT checkpoint.load=[weights]`.

    hf: Llama, Mistral, Qwen and Nemotron, with their tokenizer. megatron and nemo: dense GPTs in torch_dist, weights
    only. OUT appears complete or not at all.
    """
    if kind != "hf":
        _import_weights(kind, folder, out, recipe_out, dtype, as_json)
        return
    if recipe_out is not None:
        refuse_existing(recipe_out, "--recipe-out")
        if recipe_out.suffix not in (".yaml", ".yml"):
            rule = "the name of a recipe must end in .yaml"
            raise RefusedInput([Fault(path="--recipe-out", value=str(recipe_out), rule=rule, where="command line")])
        if read_folder(folder).tokenizer is None:
            rule = f"{folder} has no tokenizer with an end-of-text token, which a recipe needs"
            raise RefusedInput([Fault(path="--recipe-out", value=str(recipe_out), rule=rule, where="command line")])
    needs_torch()
    from colosseum.checkpoint.hf.importing import import_hf

    source = import_hf(folder, out, dtype=dtype, progress=_progress("imported"))
    if recipe_out is not None:
        write_new(recipe_out, sft_recipe(out), "--recipe-out")
    recipe, written = None if recipe_out is None else str(recipe_out), dtype or source.dtype
    result = {"checkpoint": str(out), "architecture": source.family.architecture, "recipe": recipe, "dtype": written}

    def show() -> None:
        say(f"{out}: {source.family.architecture}, {source.model.num_layers} layers, {written}")
        if recipe is None:
            say(f"start from it: checkpoint.from={out} checkpoint.load=[weights]")
        else:
            say(f"next: colosseum plan {recipe}, then colosseum align sft {recipe} data.train=FILE")

    emit(as_json, {"schema": IMPORT_SCHEMA, **result}, show)


def _import_weights(
    kind: str, source: Path, out: Path, recipe_out: Path | None, dtype: str | None, as_json: bool
) -> None:
    """``import megatron`` and ``import nemo``."""
    for option, value in (("--recipe-out", recipe_out), ("--dtype", dtype)):
        if value is not None:
            raise RefusedInput(
                [Fault(path=option, value=str(value), rule="works with import hf only", where="command line")]
            )
    needs_torch()
    if kind == "megatron":
        from colosseum.checkpoint.megatron import import_megatron

        written = import_megatron(source, out, progress=_progress("imported"))
    else:
        from colosseum.checkpoint.nemo import import_nemo
        from colosseum.engines.nemo1.importer import model_values

        written = import_nemo(source, out, model_values, progress=_progress("imported"))
    result = {"checkpoint": str(out), "architecture": None, "recipe": None, "dtype": written.dtype}

    def show() -> None:
        say(f"{out}: {written.model.num_layers} layers, {written.dtype}; it has no tokenizer")
        say(f"start from it: checkpoint.from={out} checkpoint.load=[weights]")

    emit(as_json, {"schema": IMPORT_SCHEMA, **result}, show)


def export(
    kind: Out,
    source: CheckpointWord,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    dtype: Dtype = None,
    runs: Runs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Convert a checkpoint to another tool's format.

    hf: weights, config, tokenizer, chat template, model card. megatron: `--pretrained-checkpoint OUT` of Megatron-LM.
    """
    checkpoint = checkpoint_of(source, runs, cluster)
    needs_torch()
    if kind == "megatron":
        if dtype is not None:
            rule = "works with export hf only"
            raise RefusedInput([Fault(path="--dtype", value=dtype, rule=rule, where="command line")])
        from colosseum.checkpoint.megatron import export_megatron

        export_megatron(checkpoint, out, progress=_progress("exported"))
        written = {"schema": EXPORT_SCHEMA, "folder": str(out), "checkpoint": str(checkpoint), "notes": []}
        emit(as_json, written, lambda: say(f"{out}: from {checkpoint}; --pretrained-checkpoint {out}"))
        return
    from colosseum.checkpoint.hf.exporting import export_hf

    notes = export_hf(checkpoint, out, dtype=dtype, progress=_progress("exported"))
    result = {"schema": EXPORT_SCHEMA, "folder": str(out), "checkpoint": str(checkpoint), "notes": notes}
    emit(as_json, result, lambda: say(f"{out}: from {checkpoint}"))
    warn([] if as_json else notes)


def checkpoint_of(source: str, runs: Path | None, cluster: str | None = None) -> Path:
    """The checkpoint folder of RUN, RUN@STEP, RUN@selected, SWEEP@selected or a path."""
    if source.endswith(WORD) and not Path(source).exists():
        run, step = run_and_step_of(source, runs_folder(runs, cluster))
        source = f"{run}@{step}"
    return find(source, lambda name: find_run(name, runs_folder(runs, cluster)))


def needs_torch() -> None:
    if missing := [name for name in ("torch", "safetensors", "xxhash") if find_spec(name) is None]:
        raise EnvironmentFault(f"reading weights needs {', '.join(missing)}; {INSTALL_TRAIN}")


def _progress(word: str) -> Callable[[int, int], None]:
    show = counter()
    return lambda done, total: show(f"{word} {format_bytes(done)} of {format_bytes(total)}")
