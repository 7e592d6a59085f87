"""``colosseum checkpoint probe``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from colosseum.checkpoint.probing import loss_by_position, sequences_of
from colosseum.cli.checkpoint_hf import checkpoint_of, needs_torch
from colosseum.cli.output import Cluster, Json, Runs, columns, emit


def probe(
    sources: Annotated[
        list[str], typer.Argument(metavar="RUN|CKPT…", help="Checkpoints to compare.", show_default=False)
    ],
    data: Annotated[
        Path, typer.Option(metavar="PREFIX", help="Indexed dataset (PREFIX.bin and .idx), tokenized for these models.")
    ],
    length: Annotated[int, typer.Option(min=2, help="Tokens per sequence: the context length to test.")] = 4096,
    sequences: Annotated[int, typer.Option(min=1, help="Number of sequences, from the beginning of the dataset.")] = 1,
    bands: Annotated[int, typer.Option(min=1, help="Number of ranges of positions.")] = 8,
    runs: Runs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Print the loss by position in the sequence, computed in FP32 on this CPU: does a model use its context?"""
    needs_torch()
    folders = {source: checkpoint_of(source, runs, cluster) for source in sources}
    texts = sequences_of(data, length, sequences)
    found = {source: loss_by_position(folder, texts, bands) for source, folder in folders.items()}
    ranges = [f"{band.first:,}-{band.last:,}" for band in next(iter(found.values()))]
    rows = [[name, *(f"{losses[i].loss:.4f}" for losses in found.values())] for i, name in enumerate(ranges)]
    result: dict[str, Any] = {"schema": "colosseum.probed/1", "length": length, "sequences": sequences}
    result["losses"] = {source: [asdict(band) for band in losses] for source, losses in found.items()}
    emit(as_json, result, lambda: columns(rows, ["position", *found]))
