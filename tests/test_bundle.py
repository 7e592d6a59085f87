"""A bundle is written whole or not at all, never overwritten, and every change shows."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import pytest

from colosseum.bundle import MANIFEST, MANIFEST_SCHEMA, read_bundle, to_json, to_yaml, verify_bundle, write_bundle
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.launch.compile import Compiled, compile_bundle
from colosseum.launch.submit import new_run
from colosseum.planning.resolve import apply_layout, resolve
from colosseum.recipe.load import load

FILES = {"recipe.yaml": b"a: 1\n", "engine/args.txt": b"--x\n", "job.sbatch": b"#!/bin/bash\n"}
HEAD = {"schema": MANIFEST_SCHEMA}


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
            write_bundle(tmp_path / "b", {f"file{j}": bytes([i]) * 1000 for j in range(20)}, HEAD)
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
    assert problem.endswith({"link": "added", "emptied": "changed"}.get(change, change))
    with pytest.raises(RefusedInput, match="not a sound bundle"):
        read_bundle(root)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}', '{"schema": "other/1", "files": {}}', "\x00"])
def test_a_manifest_that_is_none_is_said_to_be(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    assert len(verify_bundle(tmp_path)) == 1


def test_a_bundle_that_leads_outside_is_unsound(tmp_path: Path) -> None:
    """A manifest names files inside its folder only: verifying a stranger's bundle reads nothing else."""
    (tmp_path / "secret").write_text("x")
    root = tmp_path / "b"
    root.mkdir()
    (root / MANIFEST).write_text(json.dumps({**HEAD, "files": {"../secret": "0" * 64}}))
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


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("recipe.yaml", "model: {layers: 3}"),
        ("recipe.yaml", "- a list"),
        ("recipe.yaml", "[" * 5000),
        ("plan.json", "{}"),
        ("plan.json", "[" * 100_000),
    ],
)
def test_a_bundle_of_another_release_is_a_sentence(bundle: Path, name: str, text: str) -> None:
    """Its sums are right: what it holds is what another release meant by a recipe or plan."""
    (bundle / name).write_text(text)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"][name] = hashlib.sha256(text.encode()).hexdigest()
    manifest["versions"]["colosseum"] = "0.0.9"
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RefusedInput, match=r"was written by Colosseum 0\.0\.9 and .* this release, 0\.1\.0, reads"):
        read_bundle(bundle)


def test_a_bundle_with_a_pipe_is_not_waited_for(bundle: Path) -> None:
    (bundle / "plan.json").unlink()
    os.mkfifo(bundle / "plan.json")
    assert verify_bundle(bundle) == ["plan.json is no regular file that can be read"]
    (bundle / "manifest.json").unlink()
    os.mkfifo(bundle / "manifest.json")
    assert verify_bundle(bundle) == ["manifest.json is no regular file"]


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002, 0o000])
def test_modes_do_not_follow_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        run = new_run(tmp_path, "modes")
        write_bundle(run.bundle, FILES, HEAD)
    finally:
        os.umask(before)
    modes = {p.relative_to(run.root).as_posix(): p.stat().st_mode & 0o7777 for p in run.root.rglob("*")}
    assert run.root.stat().st_mode & 0o7777 == 0o750
    assert modes == {
        "bundle": 0o750,
        "bundle/engine": 0o750,
        "bundle/engine/args.txt": 0o640,
        "bundle/job.sbatch": 0o750,
        "bundle/manifest.json": 0o640,
        "bundle/recipe.yaml": 0o640,
    }
