"""What was trained on: tokens and epochs by source and tag, planned and consumed, from a run to its first ancestor.

A run's ledger.jsonl counts over its whole lineage; what the run itself consumed is the difference to the checkpoint
that it began from. Of each source the manifest that `data tokenize` wrote tells licence, shards and hashes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colosseum.bundle import LaunchBundle, read_bundle
from colosseum.data.blending.report import drawn
from colosseum.data.indexed import bin_path, idx_path, read_span
from colosseum.data.parts import documents
from colosseum.errors import RefusedInput
from colosseum.reading import Unreadable, rows
from colosseum.recipe.derived import layout_text
from colosseum.records import whole
from colosseum.rundir import RunDir

MAX_GENERATIONS = 100
MAX_MANIFEST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceUse:
    """One source in one run."""

    path: str
    tags: tuple[str, ...]
    planned: int | None
    """Tokens by the blend's weights over the whole run; None = a file of rows, or a run without an end."""
    consumed: int
    available: int | None
    """Tokens of the training part now; None = not readable."""
    corpus: Mapping[str, Any] | None
    """The manifest of `data tokenize`."""
    state: str
    """same | changed | missing | no manifest: the files against the manifest."""

    @property
    def epochs(self) -> float | None:
        return self.consumed / self.available if self.available else None

    def as_json(self) -> dict[str, Any]:
        corpus = self.corpus or {}
        return {
            "path": self.path,
            "tags": list(self.tags),
            "planned_tokens": self.planned,
            "consumed_tokens": self.consumed,
            "available_tokens": self.available,
            "epochs": self.epochs,
            "licence": corpus.get("licence") or None,
            "state": self.state,
            "files": corpus.get("files"),
            "tokenizer": corpus.get("tokenizer"),
            "shards": corpus.get("sources"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUse:
    """What one run of the lineage consumed."""

    run: RunDir
    task: str
    recipe_hash: str
    layout: str
    attempts: int
    step: int
    """Up to which it is counted: the checkpoint that the next run began from, or the last one."""
    total_steps: int | None
    sources: tuple[SourceUse, ...]

    @property
    def consumed(self) -> int:
        return sum(source.consumed for source in self.sources)

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run.root.name,
            "task": self.task,
            "recipe_hash": self.recipe_hash,
            "layout": self.layout,
            "attempts": self.attempts,
            "step": self.step,
            "total_steps": self.total_steps,
            "consumed_tokens": self.consumed,
            "sources": [source.as_json() for source in self.sources],
        }


def lineage_use(run: RunDir, step: int | None = None) -> list[RunUse]:
    """The run and its ancestors, oldest first.

    Args:
        step: up to which the run is counted; None = its last checkpoint.

    Raises:
        RefusedInput: a bundle is damaged, or there is no entry of that step.
    """
    found: list[RunUse] = []
    seen: set[Path] = set()
    while True:
        bundle = read_bundle(run.bundle)
        lineage = bundle.manifest.get("lineage")
        parent = run.root.resolve().parent / lineage["run"] if lineage else None
        before = _counts(RunDir(parent), lineage["step"])[1] if lineage and parent and parent.is_dir() else {}
        found.append(_use(run, bundle, step, before))
        seen.add(run.root.resolve())
        last = parent is None or not (parent / "bundle").is_dir() or parent in seen or len(found) == MAX_GENERATIONS
        if last or not lineage or parent is None:
            return found[::-1]
        run, step = RunDir(parent), lineage["step"]


def by_tag(runs: Iterable[RunUse]) -> dict[str, int]:
    """Consumed tokens by tag, most first; a source with several tags counts in each."""
    counts: dict[str, int] = defaultdict(int)
    for run in runs:
        for source in run.sources:
            for tag in source.tags or ("(no tag)",):
                counts[tag] += source.consumed
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _use(run: RunDir, bundle: LaunchBundle, step: int | None, before: Mapping[str, int]) -> RunUse:
    at, counts = _counts(run, step)
    recipe, layout = bundle.recipe, bundle.plan.layout
    consumed = {name: n - before.get(name, 0) for name, n in counts.items() if n - before.get(name, 0)}
    total = bundle.manifest.get("total_steps")
    planned: dict[str, int] = defaultdict(int)
    tags: dict[str, tuple[str, ...]] = {entry.path: entry.tags for entry in recipe.data.blend}
    if recipe.data.blend and total:
        samples = drawn([entry.weight for entry in recipe.data.blend], total * recipe.batch.gbs)
        for entry, count in zip(recipe.data.blend, samples, strict=True):
            planned[entry.path] += count * recipe.batch.seq_length
    names = [*dict.fromkeys([*tags, *consumed])]
    return RunUse(
        run=run,
        task=recipe.task.kind,
        recipe_hash=str(bundle.manifest.get("recipe_hash", "")),
        layout=layout_text(layout.tp, layout.pp, layout.vpp, layout.cp, layout.dp),
        attempts=len(run.attempt_numbers()),
        step=at,
        total_steps=total,
        sources=tuple(
            _source(name, tags.get(name, ()), planned.get(name), consumed.get(name, 0), recipe.data.split)
            for name in names
        ),
    )


def _counts(run: RunDir, step: int | None) -> tuple[int, dict[str, int]]:
    """Step and tokens by source of the lineage, of the ledger's last row (of that step). Later rows count."""
    found: tuple[int, dict[str, int]] | None = None
    try:
        for row in rows(run.ledger):
            number, counts = whole(row.get("step")), row.get("tokens_by_source")
            if number is None or not isinstance(counts, dict) or (step is not None and number != step):
                continue
            found = number, {str(name): n for name, count in counts.items() if (n := whole(count)) is not None}
    except Unreadable as error:
        raise RefusedInput(f"{run.ledger} cannot be read: {error}") from error
    if found is None and step is not None:
        raise RefusedInput(f"{run.ledger} has no entry for step {step:,}: the ledger has one per checkpoint")
    return found or (0, {})


def _source(path: str, tags: Sequence[str], planned: int | None, consumed: int, split: str) -> SourceUse:
    prefix = Path(path)
    try:
        available = read_span(prefix, lambda count: documents(split, "train", count)).tokens
    except RefusedInput:
        available = None
    corpus = read_manifest(prefix)
    return SourceUse(
        path=path,
        tags=tuple(tags),
        planned=planned,
        consumed=consumed,
        available=available,
        corpus=corpus,
        state=_state(prefix, corpus),
    )


def read_manifest(prefix: Path) -> Mapping[str, Any] | None:
    """What `data tokenize` wrote beside a dataset; None = nothing that can be read."""
    path = prefix.with_name(f"{prefix.name}.manifest.json")
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            return None
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _state(prefix: Path, corpus: Mapping[str, Any] | None) -> str:
    try:
        sizes = {"bin": bin_path(prefix).stat().st_size, "idx": idx_path(prefix).stat().st_size}
    except OSError:
        return "missing"
    if corpus is None:
        return "no manifest"
    try:
        same = all(corpus["files"][kind]["bytes"] == size for kind, size in sizes.items())
    except (KeyError, TypeError):
        same = False
    return "same" if same else "changed"
