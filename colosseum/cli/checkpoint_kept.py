"""``colosseum checkpoint average``, ``copy`` and ``prune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colosseum.checkpoint import pruning
from colosseum.checkpoint.averaging import average as averaged
from colosseum.checkpoint.averaging import shares_of
from colosseum.cli.checkpoint_hf import checkpoint_of, needs_torch
from colosseum.cli.output import Cluster, Json, Runs, emit, say
from colosseum.launch.runs.submit import find_run, runs_root
from colosseum.recipe.load import load_cluster
from colosseum.units import format_bytes


def average(
    sources: Annotated[
        list[str], typer.Argument(metavar="RUN|CKPT…", help="Two checkpoints or more of one model.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", metavar="OUT", help="Checkpoint folder to write.")],
    weights: Annotated[
        str | None,
        typer.Option(metavar="W,W,…", help="Weight of each checkpoint in the average. Default: all the same."),
    ] = None,
    runs: Runs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Average the weights of checkpoints of one model; the result holds weights only."""
    shares = shares_of(weights, len(sources))
    needs_torch()
    folders = [checkpoint_of(source, runs, cluster) for source in sources]
    written = averaged(folders, shares, out)
    result = {"schema": "colosseum.averaged/1", "checkpoint": str(out), "sources": [str(f) for f in folders]}
    emit(
        as_json,
        {**result, "weights": shares, "dtype": written.dtype},
        lambda: say(f"{out}: the average of {len(folders)} checkpoints, {written.dtype}, weights only"),
    )


def copy(
    source: Annotated[str, typer.Argument(metavar="RUN|CKPT", help="A run, RUN@STEP, or the path of a checkpoint.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Checkpoint folder to write.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the copy again from the disk and compare every byte.")
    ] = False,
    runs: Runs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Copy a checkpoint with its model description and tokenizer; every byte is compared with the checksums."""
    needs_torch()
    from colosseum.checkpoint.copying import copy as copied

    folder = checkpoint_of(source, runs, cluster)
    metadata = copied(folder, out, verify=verify)
    size = sum(file.bytes for file in metadata.files.values())
    result = {"schema": "colosseum.copied/1", "checkpoint": str(out), "source": str(folder), "bytes": size}
    emit(
        as_json,
        {**result, "verified": verify},
        lambda: say(f"{out}: {format_bytes(size)} from {folder}" + (", read again: identical" if verify else "")),
    )


def prune(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run: its name or folder.")],
    keep_last: Annotated[int, typer.Option(min=1, help="Number of newest checkpoints to keep, at least 1.")],
    keep_every: Annotated[int | None, typer.Option(min=1, help="Also keep steps that are divisible by this.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted.")] = False,
    runs: Runs = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Delete old checkpoints of a run; never the newest complete one, nor one that another run starts from."""
    folder = find_run(run, runs_root(runs, load_cluster(cluster)))
    found = pruning.pruning(folder, keep_last, keep_every)
    if not dry_run:
        pruning.prune(folder, found)
    result = {"schema": "colosseum.pruned/1", "run": folder.root.name, "deleted": not dry_run, "steps": found.gone}

    def show() -> None:
        steps = ", ".join(f"{step:,}" for step in found.gone) or "nothing"
        say(f"{'would delete' if dry_run else 'deleted'}: {steps} ({format_bytes(found.bytes)})")
        for step, other in found.kept.items():
            say(f"kept {step:,}: {other} starts from it")

    kept = {str(step): other for step, other in found.kept.items()}
    emit(as_json, {**result, "bytes": found.bytes, "kept": kept}, show)
