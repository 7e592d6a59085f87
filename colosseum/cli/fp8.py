"""``colosseum fp8``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from colosseum.checkpoint.folders import read_metadata
from colosseum.checkpoint.probing import sequences_of
from colosseum.cli.arguments import CheckpointWord
from colosseum.cli.checkpoint_hf import checkpoint_of, needs_torch
from colosseum.cli.output import Cluster, Json, Runs, emit, note, refuse_existing, write_new

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _fp8() -> None:
    """Look at what FP8 would do to a model."""


@app.command()
def scan(
    source: CheckpointWord,
    data: Annotated[
        Path, typer.Option(metavar="PREFIX", help="Indexed dataset (PREFIX.bin and .idx) of its tokenizer.")
    ],
    length: Annotated[int, typer.Option(min=2, help="Tokens per sequence.")] = 4096,
    sequences: Annotated[
        int, typer.Option(min=1, help="Sequences, from the beginning of the dataset. Overflow needs 2.")
    ] = 4,
    scaling: Annotated[
        Literal["delayed", "tensorwise", "blockwise"], typer.Option(help="The precision.fp8 to propose layers for.")
    ] = "delayed",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write FILE.json, and its histograms to FILE.png.")
    ] = None,
    runs: Runs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Count what FP8 loses of inputs, weights and gradients by layer; propose layers to keep in BF16."""
    files = None if out is None else (out.with_name(f"{out.name}.json"), out.with_name(f"{out.name}.png"))
    for file in files or ():
        refuse_existing(file, "--out")
    needs_torch()
    from colosseum.runtime.fp8.report import document, propose, rows_of, sentence, table
    from colosseum.runtime.fp8.scanning import scan as scanned

    folder = checkpoint_of(source, runs, cluster)
    texts = sequences_of(data, length, sequences)
    note(f"scanning {folder}")
    rows = rows_of(scanned(folder, texts))
    layers = read_metadata(folder).model.num_layers
    proposal = propose(rows, scaling, layers)
    found = document(rows, proposal, checkpoint=str(folder), length=length, sequences=sequences)
    if files is not None:
        from colosseum.runtime.fp8.picture import save_histograms

        write_new(files[0], json.dumps(found, indent=1) + "\n", "--out")
        save_histograms(rows, files[1], title=folder.name)

    written = [] if files is None else [f"wrote {files[0]} and {files[1]}"]
    emit(as_json, found, lambda: [table(rows, scaling), sentence(proposal), *written])
