"""Golden files: what every shipped recipe becomes, kept under tests/golden/<recipe>/ and compared byte by byte.

A job script is kept in two parts: its head by recipe, and the common body once (tests/golden/job.body.bash).

``scripts/update-golden`` rewrites them; nothing else does. To keep one more file of every recipe, add a function that
gives it to RENDERERS.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from colosseum.bundle import PLAN, RECIPE, to_yaml
from colosseum.engines.planned import resolved
from colosseum.engines.registry import engine_of
from colosseum.errors import RefusedInput
from colosseum.launch.bundles.compile import compile_bundle, library
from colosseum.launch.bundles.inputs import with_absolute_paths
from colosseum.planning.resolve import apply_layout, resolve
from colosseum.recipe.load import load, shipped_recipes
from colosseum.recipe.rules_base import replaced
from colosseum.recipe.schema import Recipe

GOLDEN = Path(__file__).parent / "golden"
JOB_SCRIPT = "bundle/job.sbatch"
JOB_HEAD = "bundle/job.head.bash"
"""The part of a job script that depends on the recipe: #SBATCH options and values."""
JOB_BODY = "job.body.bash"
"""The rest, which is the same in every job script: kept once, beside the recipes."""
_BODY_BEGINS = "# --- what the shell of every rank does first"


def resolved_recipe(recipe: Recipe) -> Mapping[str, bytes]:
    """recipe.yaml: every field with its final value."""
    return {"recipe.yaml": to_yaml(recipe.as_data())}


def bundle_files(recipe: Recipe) -> Mapping[str, bytes]:
    """Job or launch script, environment and engine files of the recipe's bundle; what any machine writes alike."""
    recipe = with_absolute_paths(recipe, Path("/site"))
    try:
        compiled = compile_bundle(apply_layout(recipe, resolve(recipe).layout), resolve(recipe))
    except RefusedInput as refused:  # an engine that does not render yet, or cannot run this recipe
        return {"refusal.txt": f"{refused}\n".encode()}
    known = (RECIPE, PLAN, "engine/start.py", "engine/check_config.py", *library())  # copies of files of ours
    names = [name for name in compiled.files if name not in known]
    return {f"bundle/{name}": compiled.files[name] for name in names}


def plan_document(recipe: Recipe) -> Mapping[str, bytes]:
    """plan.json: layout and predictions; six digits, which every machine computes alike."""
    text = json.dumps(_rounded(resolve(recipe).as_json()), indent=1, ensure_ascii=False)
    return {"plan.json": f"{text}\n".encode()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


ENGINE_FILES = {
    "megatron-lm": "command.json",
    "nemo1": "colosseum/run.yaml",
    "nemo2": "nemo2.json",
    "bridge": "bridge.json",
}


def other_engines(recipe: Recipe) -> Mapping[str, bytes]:
    """What every other engine makes of the recipe, or its refusal."""
    if recipe.hardware.kind != "gpu":
        return {}
    found = {}
    for name, file in ENGINE_FILES.items():
        if name == recipe.engine:
            continue
        other = resolved(replaced(recipe, "engine", name))
        engine = engine_of(name)
        if faults := engine.faults(other):
            found[f"engines/{name}.refused.txt"] = "".join(f"{fault.sentence()}\n" for fault in faults).encode()
            continue
        found[f"engines/{name}{Path(file).suffix}"] = engine.render(other, resolve(other)).files[file]
    return found


RENDERERS: tuple[Callable[[Recipe], Mapping[str, bytes]], ...] = (
    resolved_recipe,
    bundle_files,
    plan_document,
    other_engines,
)


def render(name: str) -> dict[str, bytes]:
    """Files of a shipped recipe by name, on the shipped cluster that suits its hardware."""
    hardware = load(name, cluster="local").recipe.hardware
    recipe = load(name, cluster="local" if hardware.kind == "cpu" else "dgx-h100").recipe
    files = {file: data for renderer in RENDERERS for file, data in renderer(recipe).items()}
    if JOB_SCRIPT in files:
        files[JOB_HEAD], files[JOB_BODY] = job_script_parts(files.pop(JOB_SCRIPT))
    return files


def job_script_parts(script: bytes) -> tuple[bytes, bytes]:
    """The recipe's part of a job script, and the body that all job scripts share."""
    head, begins, body = script.partition(_BODY_BEGINS.encode())
    assert begins, "a job script without the common body"
    return head, begins + body


def path_of(name: str, file: str) -> str:
    """Where a rendered file of a recipe is kept, under tests/golden."""
    return file if file == JOB_BODY else f"{name}/{file}"


def render_all() -> dict[str, bytes]:
    """Files of all shipped recipes, by path under tests/golden."""
    return {path_of(name, file): data for name in shipped_recipes() for file, data in render(name).items()}


def on_disk() -> dict[str, bytes]:
    """The files that are there."""
    return {p.relative_to(GOLDEN).as_posix(): p.read_bytes() for p in GOLDEN.rglob("*") if p.is_file()}


def update() -> list[str]:
    """Rewrites tests/golden; the paths that changed, appeared or went."""
    before, after = on_disk(), render_all()
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for path, data in after.items():
        file = GOLDEN / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


if __name__ == "__main__":
    os.environ["XDG_CONFIG_HOME"] = "/nonexistent"  # a user's own cluster files are not what is shipped
    for changed in update():
        sys.stdout.write(f"tests/golden/{changed}\n")
