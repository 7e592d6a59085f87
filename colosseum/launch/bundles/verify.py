"""Verifies a bundle against its own recipe and plan: every file is rendered again and compared.

Checksums alone do not detect deliberate changes: whoever changes a script can also change its checksum.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from colosseum.bundle import SLURM_SCRIPT, LaunchBundle, read_bundle, verify_bundle
from colosseum.errors import RefusedInput
from colosseum.launch.bundles.compile import Compiled, compile_bundle
from colosseum.planning.resolve import apply_layout
from colosseum.reading import read_bytes
from colosseum.recipe import rules
from colosseum.recipe.rules_base import Facts
from colosseum.terminal import one_line

_STOP = re.compile(rb"^stop_after_step=([0-9]{1,15})$", re.MULTILINE)
_OF_RECIPE = ("recipe_hash", "total_steps", "container")
"""Fields of the manifest that follow from the recipe."""


def problems_of(folder: Path) -> list[str]:
    """Changes in a bundle, one sentence each; empty = none."""
    if problems := verify_bundle(folder):
        return problems
    try:
        same(read_bundle(folder))
    except RefusedInput as refused:
        return [fault.sentence() for fault in refused.faults]
    return []


def same(bundle: LaunchBundle) -> Compiled:
    """The bundle rendered again from its recipe and plan.

    Raises:
        RefusedInput: it differs, or it cannot be compared because another release wrote it.
    """
    compiled = _again(bundle)
    names = compiled.files.keys() | bundle.manifest["files"].keys()
    changed = [name for name in sorted(names) if not _same_file(bundle.root, name, compiled)]
    changed += [f"{key} of manifest.json" for key in _OF_RECIPE if bundle.manifest.get(key) != compiled.manifest[key]]
    if not changed:
        return compiled
    shown = one_line(", ".join(changed), 300)
    written, ours = _release(bundle.manifest), _release(compiled.manifest)
    if written != ours:
        raise RefusedInput(
            f"{bundle.root} was written by {written} and this is {ours}, which renders {shown} otherwise: only the "
            f"release that wrote a bundle can compare it"
        )
    raise RefusedInput(f"{bundle.root} was changed: {shown} differs from what its recipe and plan give")


def _again(bundle: LaunchBundle) -> Compiled:
    recipe, layout = bundle.recipe, bundle.plan.layout
    try:
        # A recipe read back has its types; whether its values go together is for the rules.
        if broken := rules.faults(recipe):
            raise RefusedInput(broken)
        facts = Facts.of(recipe)
        if (layout.dp, layout.microbatches) != (facts.dp, facts.microbatches) or apply_layout(recipe, layout) != recipe:
            raise RefusedInput("the layout of plan.json is not the recipe's")
        return compile_bundle(recipe, bundle.plan, stop_after_step=_stop_after_step(bundle.root))
    except RefusedInput as refused:
        reason = refused.faults[0].sentence()
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # of a plan that no planner made
        reason = str(error)
    raise RefusedInput(f"{bundle.root}: recipe and plan do not match: {one_line(reason, 300)}")


def _same_file(root: Path, name: str, compiled: Compiled) -> bool:
    return name in compiled.files and read_bytes(root / name) == compiled.files[name]


def _stop_after_step(root: Path) -> int:
    """The one value of a job script that neither recipe nor plan holds (``--shakedown``)."""
    try:
        found = _STOP.search(read_bytes(root / SLURM_SCRIPT))
    except FileNotFoundError:
        return 0
    return int(found[1]) if found else 0


def _release(manifest: Any) -> str:
    """Version, and the commit of a checkout."""
    git, text = manifest["git"], f"Colosseum {one_line(str(manifest['versions'].get('colosseum')), 40)}"
    return text if git is None else f"{text} (commit {one_line(git['commit'][:12])}{', edited' * git['dirty']})"
