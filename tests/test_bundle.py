"""A bundle is written whole or not at all, never overwritten, and every change shows."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from colosseum.bundle import MANIFEST, MANIFEST_SCHEMA, read_bundle, to_json, to_yaml, verify_bundle, write_bundle
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.launch.bundles.compile import Compiled, compile_bundle
from colosseum.launch.bundles.verify import problems_of
from colosseum.launch.runs.submit import new_run
from colosseum.planning.resolve import apply_layout, resolve
from colosseum.recipe.load import load

FILES = {
    "recipe.yaml": b"a: 1\n",
    "plan.json": b"{}\n",
    "env.json": b"{}\n",
    "engine/args.txt": b"--x\n",
    "job.sbatch": b"#!/bin/bash\n",
}
NOTHING = dict.fromkeys(("git", "container", "lineage", "total_steps"))
HEAD = {"schema": MANIFEST_SCHEMA, "recipe_hash": "0", "versions": {}, **NOTHING}


@pytest.fixture
def compiled() -> Compiled:
    recipe = load("debug/cpt-4k-bf16", cluster="local").recipe
    plan = resolve(recipe)
    return compile_bundle(apply_layout(recipe, plan.layout), plan)


@pytest.fixture
def bundle(compiled: Compiled, tmp_path: Path) -> Path:
    write_bundle(tmp_path / "b", compiled.files, compiled.manifest)
    return tmp_path / "b"


def test_what_is_written_is_read_back(compiled: Compiled, tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", compiled.files, compiled.manifest)
    bundle = read_bundle(tmp_path / "b")
    assert bundle.recipe == compiled.recipe
    assert bundle.plan == compiled.plan
    assert set(bundle.manifest["files"]) == set(compiled.files)
    assert os.access(tmp_path / "b" / "launch.sh", os.X_OK)


def test_the_same_recipe_gives_the_same_bytes(compiled: Compiled) -> None:
    again = compile_bundle(compiled.recipe, compiled.plan)
    assert again.files == compiled.files
    assert again.manifest == compiled.manifest


def test_a_bundle_is_never_overwritten(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", FILES, HEAD)
    with pytest.raises(RefusedInput, match="never overwritten"):
        write_bundle(tmp_path / "b", {}, HEAD)
    assert verify_bundle(tmp_path / "b") == []


def test_of_two_writers_one_wins_whole(tmp_path: Path) -> None:
    """Eight threads write different bundles to one place; one is there in the end, the others are refused."""
    results: list[object] = []
    start = threading.Barrier(8)

    def write(i: int) -> None:
        start.wait()
        try:
            write_bundle(tmp_path / "b", {**FILES, **{f"file{j}": bytes([i]) * 1000 for j in range(20)}}, HEAD)
            results.append(i)
        except RefusedInput as refused:
            results.append(refused)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [r for r in results if isinstance(r, int)]
    assert verify_bundle(tmp_path / "b") == []
    assert (tmp_path / "b/file7").read_bytes() == bytes([winner]) * 1000
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("change", ["changed", "added", "missing", "link", "emptied"])
def test_every_change_shows(tmp_path: Path, change: str) -> None:
    root = tmp_path / "b"
    write_bundle(root, FILES, HEAD)
    target = root / "engine/args.txt"
    if change == "changed":
        target.write_text("--y\n")
    elif change == "added":
        (root / "engine/.hidden").write_text("")
    elif change == "missing":
        target.unlink()
    elif change == "emptied":
        target.write_bytes(b"")
    else:
        (root / "more").symlink_to("/etc/passwd")
    (problem,) = verify_bundle(root)
    assert problem.endswith({"link": "regular files only", "emptied": "changed"}.get(change, change))
    with pytest.raises(RefusedInput, match="not a valid bundle"):
        read_bundle(root)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}', '{"schema": "other/1", "files": {}}', "\x00"])
def test_a_manifest_that_is_none_is_said_to_be(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    assert len(verify_bundle(tmp_path)) == 1


def test_a_bundle_that_leads_outside_is_unsound(tmp_path: Path) -> None:
    """A manifest names files inside its folder only: verifying a stranger's bundle reads nothing else."""
    (tmp_path / "secret").write_text("x")
    root = tmp_path / "b"
    write_bundle(root, FILES, HEAD)
    manifest = json.loads((root / MANIFEST).read_text())
    manifest["files"]["../secret"] = hashlib.sha256(b"x").hexdigest()
    (root / MANIFEST).write_text(json.dumps(manifest))
    assert verify_bundle(root) == ["../secret is missing"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot write a bundle"):
        write_bundle(tmp_path / "file" / "b", FILES, HEAD)


def test_text_forms() -> None:
    assert to_json({"b": 1, "a": "é"}) == b'{\n  "a": "\xc3\xa9",\n  "b": 1\n}\n'
    assert to_yaml({"b": 1, "a": 1e-05}) == b"b: 1\na: 1.0e-05\n"
    with pytest.raises(ValueError, match="JSON"):
        to_json(float("nan"))


BOMB = "l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"l{i + 1}: &l{i + 1} [{', '.join([f'*l{i}'] * 10)}]\n" for i in range(9)
)
DEEP = "[" * 100_000


def renewed(bundle: Path, changed: Mapping[str, str | bytes], /, **fields: object) -> None:
    """A stranger's work: files written anew, and their sums."""
    manifest = json.loads((bundle / MANIFEST).read_text())
    for name, text in changed.items():
        data = text.encode() if isinstance(text, str) else text
        (bundle / name).write_bytes(data)
        manifest["files"][name] = hashlib.sha256(data).hexdigest()
    (bundle / MANIFEST).write_text(json.dumps({**manifest, **fields}))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("recipe.yaml", "model: {layers: 3}"),
        ("recipe.yaml", "- a list"),
        ("recipe.yaml", "a: [broken"),
        ("recipe.yaml", "!!python/object/apply:os.system [touch hit]"),
        ("recipe.yaml", b"name: \xff"),
        ("recipe.yaml", ""),
        ("recipe.yaml", "3"),
        ("recipe.yaml", "name: [debug]"),
        ("recipe.yaml", DEEP),
        ("recipe.yaml", BOMB),
        ("plan.json", "{}"),
        ("plan.json", "[]"),
        ("plan.json", "[broken"),
        ("plan.json", DEEP),
        ("plan.json", '{"schema": "colosseum.plan/1", "fits": true, "layout": {"tp": 1e999}}'),
        ("env.json", "[]"),
        ("env.json", DEEP),
        ("env.json", '{"schema": "colosseum.env/1", "variables": [{"name": "A", "value": 3, "reason": ""}]}'),
    ],
)
def test_a_file_of_another_form_is_one_sentence(bundle: Path, name: str, text: str | bytes) -> None:
    """Its sums are right; read as data within bounds, it is refused, and named."""
    renewed(bundle, {name: text})
    (problem,) = problems_of(bundle)
    assert problem.startswith(f"{bundle}: {name} cannot be read: ") and len(problem) < 500
    assert "\n" not in problem
    assert not [word for word in ("Input", "valid dict", "instance", "tuple", "Field", "ident") if word in problem]
    versions = json.loads((bundle / MANIFEST).read_text())["versions"]
    renewed(bundle, {}, versions={**versions, "colosseum": "0.0.9"})
    with pytest.raises(RefusedInput, match=r"was written by Colosseum 0\.0\.9; this release is 0\.1\.0"):
        read_bundle(bundle)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"files": {}}, "does not list env.json or job.sbatch or launch.sh or plan.json or recipe.yaml"),
        ({"files": {"recipe.yaml": "0"}}, "does not list env.json or job.sbatch or launch.sh or plan.json"),
        ({"files": {"recipe.yaml": None}}, "files is missing or not of the expected form"),
        ({"versions": None}, "versions is missing or not of the expected form"),
        ({"git": {"commit": 3, "dirty": False}}, "git is missing or not of the expected form"),
        ({"lineage": {"run": "x", "step": True}}, "lineage is missing or not of the expected form"),
        ({"lineage": ["x"]}, "lineage is missing or not of the expected form"),
        ({"container": "x"}, "container is missing or not of the expected form"),
        ({"total_steps": -1}, "total_steps is missing or not of the expected form"),
        ({"recipe_hash": None}, "recipe_hash is missing or not of the expected form"),
    ],
)
def test_a_manifest_says_everything_and_in_its_form(bundle: Path, fields: dict[str, object], problem: str) -> None:
    renewed(bundle, {}, **fields)
    assert problem in problems_of(bundle)[0]


@pytest.mark.parametrize("kind", ["link", "folder link", "loop", "pipe", "socket"])
def test_only_regular_files_and_nothing_is_followed_or_waited_for(bundle: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/id").write_text("secret")
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(bundle):
        if kind == "pipe":
            os.mkfifo("docs")
        elif kind == "socket":
            server.bind("docs")
        else:
            Path("docs").symlink_to(tmp_path / {"link": "keys/id", "folder link": "keys"}.get(kind, "b"))
    named = "no regular file" if kind in ("pipe", "socket") else "a link"
    assert problems_of(bundle) == [f"docs is {named}: a bundle contains regular files only"]
    with pytest.raises(RefusedInput, match=f"docs is {named}"):
        read_bundle(bundle)


@pytest.mark.parametrize("name", ["plan.json", "launch.sh"])
def test_a_listed_file_that_is_a_pipe_or_link_is_not_read(bundle: Path, tmp_path: Path, name: str) -> None:
    (bundle / name).rename(tmp_path / "moved")
    (bundle / name).symlink_to(tmp_path / "moved")  # with the right sum
    assert verify_bundle(bundle) == [f"{name} is a link: a bundle contains regular files only", f"{name} is missing"]
    (bundle / MANIFEST).unlink()
    os.mkfifo(bundle / MANIFEST)
    assert verify_bundle(bundle) == ["manifest.json is no regular file"]


def test_sizes_and_counts_are_bounded(bundle: Path) -> None:
    with (bundle / "plan.json").open("r+b") as file:
        file.truncate(1 << 40)
    assert verify_bundle(bundle) == ["plan.json cannot be read"]
    (bundle / "plan.json").write_text("{}")
    for i in range(40):
        (bundle / f"more{i}").write_text("")
    assert verify_bundle(bundle)[-1] == "and 31 more"
    deep = bundle
    for _ in range(70):
        deep = deep / "d"
        deep.mkdir()
    assert verify_bundle(bundle) == ["it has more than 64 files and folders, too many for a bundle"]


ADDED = "touch hit\n"


@pytest.mark.parametrize("name", ["launch.sh", "env.json", "recipe.yaml", "plan.json", "engine/more.py"])
def test_a_line_more_with_its_sum_renewed_shows(bundle: Path, name: str) -> None:
    """What a stranger adds to a file is found by rendering the file again from recipe and plan."""
    assert problems_of(bundle) == []
    old = (bundle / name).read_text() if (bundle / name).exists() else ""
    (bundle / "engine").mkdir(exist_ok=True)
    renewed(bundle, {name: old + {"launch.sh": ADDED, "engine/more.py": ADDED}.get(name, "\n")})
    assert verify_bundle(bundle) == []
    assert problems_of(bundle) == [f"{bundle} was changed: {name} differs from what its recipe and plan give"]


def test_a_variable_more_in_the_recipe_is_what_the_recipe_says_and_its_hash_tells(bundle: Path) -> None:
    """A changed recipe with no script rendered again does not pass, whichever sums are renewed."""
    text = (bundle / "recipe.yaml").read_text().replace("seed: 1234", "seed: 4321")
    renewed(bundle, {"recipe.yaml": text})
    assert problems_of(bundle) == [
        f"{bundle} was changed: recipe_hash of manifest.json differs from what its recipe and plan give"
    ]


def test_what_another_release_rendered_cannot_be_compared(bundle: Path) -> None:
    versions = json.loads((bundle / MANIFEST).read_text())["versions"]
    git = {"commit": "0123456789abcdef", "dirty": True}
    renewed(bundle, {}, versions={**versions, "colosseum": "0.0.9"}, git=git)
    assert problems_of(bundle) == []  # another release, and the same files
    renewed(bundle, {"launch.sh": "#!/bin/bash\n"})
    (problem,) = problems_of(bundle)
    assert "was written by Colosseum 0.0.9 (commit 0123456789ab, edited) and this is Colosseum 0.1.0" in problem
    assert "renders launch.sh otherwise" in problem and "was changed" not in problem


@pytest.mark.parametrize("change", [("tp: 1", "tp: 3"), ("tp: 1", "tp: auto"), ("gbs: ", "gbs: 1000")])
def test_a_recipe_that_breaks_its_rules_is_a_sentence(bundle: Path, change: tuple[str, str]) -> None:
    text = (bundle / "recipe.yaml").read_text()
    assert change[0] in text
    renewed(bundle, {"recipe.yaml": text.replace(*change)})
    (problem,) = problems_of(bundle)
    assert problem.startswith(f"{bundle}: recipe and plan do not match")


@pytest.mark.parametrize("change", [{"tp": 0}, {"dp": 0}, {"microbatches": -1}, {"tp": 7}])
def test_a_plan_of_another_recipe_is_a_sentence(bundle: Path, change: dict[str, int]) -> None:
    plan = json.loads((bundle / "plan.json").read_text())
    plan["layout"] |= change
    renewed(bundle, {"plan.json": json.dumps(plan)})
    (problem,) = problems_of(bundle)
    assert problem.startswith(f"{bundle}: recipe and plan do not match") or "plan.json differs" in problem


def test_a_job_script_is_compared_with_the_step_of_its_shakedown(tmp_path: Path) -> None:
    recipe = load("debug-8b/cpt-4k-bf16", cluster="dgx-h100").recipe
    plan = resolve(recipe)
    compiled = compile_bundle(apply_layout(recipe, plan.layout), plan, stop_after_step=3)
    write_bundle(tmp_path / "b", compiled.files, compiled.manifest)
    assert problems_of(tmp_path / "b") == []
    script = compiled.script.replace("\nstop_after_step=3\n", "\nstop_after_step=3; touch hit\n")
    renewed(tmp_path / "b", {"job.sbatch": script})
    assert "job.sbatch differs" in problems_of(tmp_path / "b")[0]


@contextlib.contextmanager
def umask_of(umask: int) -> Iterator[None]:
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002, 0o000])
def test_modes_do_not_follow_the_umask(tmp_path: Path, umask: int) -> None:
    with umask_of(umask):
        run = new_run(tmp_path, "modes")
        write_bundle(run.bundle, FILES, HEAD)
    modes = {p.relative_to(run.root).as_posix(): p.stat().st_mode & 0o7777 for p in run.root.rglob("*")}
    assert run.root.stat().st_mode & 0o7777 == 0o750
    assert modes == {
        "bundle": 0o750,
        "bundle/engine": 0o750,
        "bundle/engine/args.txt": 0o640,
        "bundle/env.json": 0o640,
        "bundle/job.sbatch": 0o750,
        "bundle/manifest.json": 0o640,
        "bundle/plan.json": 0o640,
        "bundle/recipe.yaml": 0o640,
    }
