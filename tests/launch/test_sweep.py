"""Sweeps: how they are written, what refuses them, what is made. No job is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colosseum.bundle import read_bundle, verify_bundle
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.launch.runs.request import NewRun, Request
from colosseum.launch.trials.sweep import (
    SCRIPT,
    Sweep,
    Values,
    array_script,
    begin,
    find_sweep,
    overrides_of,
    parse_axis,
    points_of,
    read_sweep,
    run_here,
)
from tests.cli.conftest import DATA, TOKENIZER, write_tokens

SCRIPT_TEXT = """\
#!/bin/bash
#SBATCH --job-name=tune
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --time=0-00:30:00
#SBATCH --partition=main
#SBATCH --output=%a/logs/job-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@450
#SBATCH --requeue

# Every job of the array is a run of its own; its folder is linked here by its index.
cd -P "$SLURM_ARRAY_TASK_ID" || exit 76
exec bash bundle/job.sbatch
"""


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("optimizer.lr=1e-7,3e-7", ("1e-7", "3e-7")),
        ("+optimizer.lr= 1e-7 , 3e-7 ", ("1e-7", "3e-7")),
        ("checkpoint.load=[weights],[weights, data]", ("[weights]", "[weights, data]")),
        (
            "data.blend=[{path: a, weight: 1}],[{path: b, weight: 1}]",
            ("[{path: a, weight: 1}]", "[{path: b, weight: 1}]"),
        ),
        ("tokenizer.path='a,b',c", ("'a,b'", "c")),
        ("optimizer=adam-cpt,adam-align", ("adam-cpt", "adam-align")),
        ("checkpoint.keep_last=null,2", ("null", "2")),
    ],
)
def test_an_axis_is_divided_at_its_outer_commas(word: str, values: tuple[str, ...]) -> None:
    assert parse_axis(word) == (word.partition("=")[0].lstrip("+"), values)


@given(st.lists(st.floats(0, 1).map(str), min_size=2, max_size=20))
def test_an_axis_keeps_every_value_as_written(texts: list[str]) -> None:
    assert parse_axis(f"optimizer.lr={','.join(texts)}") == ("optimizer.lr", tuple(texts))


@pytest.mark.parametrize(
    ("word", "rule"),
    [
        ("optimizer.lr", "at least two values"),
        ("optimizer.lr=1e-7", "at least two values"),
        ("=1,2", "KEY=a,b,c"),
        ("optimizer.lr=1,,2", "KEY=a,b,c"),
        ("optimizer.lr=1,2]", "KEY=a,b,c"),
        ("optimizer.lr=1],[2", "KEY=a,b,c"),
        ("optimizer.lr=" + "[" * 5000, "KEY=a,b,c"),
        ("optimizer.lr=" + "1," * 6000, "KEY=a,b,c"),
        ("name=a,b", "have the same name and cluster"),
        ("cluster=local,dev-slurm", "have the same name and cluster"),
        ("cluster.slurm.partition=main,short", "have the same name and cluster"),
    ],
)
def test_a_faulty_axis(word: str, rule: str) -> None:
    with pytest.raises(RefusedInput) as refused:
        parse_axis(word)
    (fault,) = refused.value.faults
    assert rule in fault.rule
    assert (fault.path, fault.where) == ("--sweep", "command line")


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe's data."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    monkeypatch.delenv("COLOSSEUM_RUNS", raising=False)
    write_tokens(tmp_path / "tokens")
    (tmp_path / "tokenizer.json").write_text(TOKENIZER)
    return tmp_path


def _points(house: Path, *sweeps: str, words: tuple[str, ...] = (), cluster: str = "dev-slurm") -> Any:
    overrides = ("name=tune", *DATA, "optimizer.min_lr=0", *words)
    request = Request(kind="cpt", recipe="debug/cpt-4k-bf16", overrides=overrides, cluster=cluster, runs=house / "runs")
    return points_of(request, sweeps, house)


def _refusal(house: Path, *sweeps: str, words: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(RefusedInput) as refused:
        begin(_points(house, *sweeps, words=words), None)
    assert not (house / "runs").exists()
    return [fault.sentence() for fault in refused.value.faults]


def test_several_axes_give_every_combination(house: Path) -> None:
    points = _points(house, "optimizer.lr=1e-3,1e-4", "batch.gbs=16,32")
    assert [overrides_of(values) for values, _ in points] == [
        f"optimizer.lr={lr} batch.gbs={gbs}" for lr in ("1e-3", "1e-4") for gbs in (16, 32)
    ]
    recipes = [asked.compiled.recipe for _, asked in points]
    assert [(r.optimizer.lr, r.batch.gbs) for r in recipes] == [(1e-3, 16), (1e-3, 32), (1e-4, 16), (1e-4, 32)]


def test_one_bad_value_refuses_all_and_is_named(house: Path) -> None:
    (fault,) = _refusal(house, "optimizer.lr=1e-3,-1,1e-4", words=("optimizer.min_lr=0",))[:1]
    assert fault.startswith("optimizer.lr = -1: ")
    assert "(at optimizer.lr=-1)" in fault


def test_a_fault_of_all_points_is_told_once(house: Path) -> None:
    (fault,) = _refusal(house, "optimizer.lr=1e-3,1e-4", words=("batch.gbs=3",))
    assert fault.startswith("batch.gbs = 3: ")
    assert "(at " not in fault


@pytest.mark.parametrize(
    ("sweeps", "sentence"),
    [
        (("optimizer.lr=1e-3,0.001",), "optimizer.lr=0.001': is the same recipe as optimizer.lr=1e-3"),
        (("optimizer.lr=1e-3,1e-4", "optimizer.lr=1,2"), "repeats a key"),
        (("resources.gpus=1,2",), "point 1 has --ntasks-per-node=2 and the first --ntasks-per-node=1"),
        (("train.seed=" + ",".join(map(str, range(1001))),), "gives 1,001 points; at most 1,000 are allowed"),
        (("tokenizer.path=tokenizer.json,gone.json",), "does not exist (at tokenizer.path=gone.json)"),
        (("optimizer.learning_rate=1,2",), "optimizer.learning_rate"),
    ],
)
def test_refused_sweeps_leave_nothing(house: Path, sweeps: tuple[str, ...], sentence: str) -> None:
    assert sentence in " ".join(_refusal(house, *sweeps))


def test_a_sweep_without_room_is_refused(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = _points(house, "optimizer.lr=1e-3,1e-4")
    one = points[0][1].compiled.plan.storage.disk_bytes
    monkeypatch.setattr("colosseum.launch.runs.submit._free_bytes", lambda folder: int(1.5 * one))
    with pytest.raises(EnvironmentFault, match=r"all 2 runs keep take .*name another place with --runs"):
        begin(points, None)
    assert not (house / "runs").exists()


def test_a_sweep_beyond_the_quota_of_its_cluster_is_refused(
    house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = _points(house, "optimizer.lr=1e-3,1e-4")[0][1].compiled.plan.storage.disk_bytes
    places = tmp_path / "config" / "colosseum" / "cluster"
    places.mkdir(parents=True)
    quota = f"storage: {{quota_bytes: {int(1.5 * one)}}}"
    (places / "site.yaml").write_text(f"name: site\nscheduler: slurm\nslurm: {{gpu_request: none}}\n{quota}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    points = _points(house, "optimizer.lr=1e-3,1e-4", cluster="site")
    with pytest.raises(EnvironmentFault, match="cluster site has a quota of "):
        begin(points, None)
    assert not (house / "runs").exists()


def test_the_array_script_holds_no_path_and_is_shellcheck_clean(house: Path) -> None:
    script = array_script(_points(house, "optimizer.lr=1e-3,1e-4", words=("resources.gpus=2",)))
    assert script == SCRIPT_TEXT
    file = house / "array.sbatch"
    file.write_text(script)
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([shellcheck, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def _begun(house: Path) -> tuple[list[tuple[Values, NewRun]], Sweep]:
    points = _points(house, "optimizer.lr=1e-3,1e-4")
    return points, begin(points, 1)


def test_every_point_is_a_run_of_its_own(house: Path) -> None:
    points, sweep = _begun(house)
    assert (sweep.name, sweep.at_once, sweep.job) == ("tune", 1, None)
    assert (sweep.root / SCRIPT).read_text() == array_script(points)
    for index, (point, lr) in enumerate(zip(sweep.points, (1e-3, 1e-4), strict=True)):
        run = sweep.run_of(point)
        assert verify_bundle(run.bundle) == []
        bundle = read_bundle(run.bundle)
        assert (bundle.recipe.optimizer.lr, bundle.manifest["recipe_hash"]) == (lr, point.recipe_hash)
        assert point.run.rpartition("-")[0].endswith(f"-tune-{index}")
        # Slurm opens the log before the script runs.
        assert (sweep.root / str(index) / "logs").samefile(run.logs)
        assert run.logs.is_dir()


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_folders_of_a_sweep_and_its_runs_have_the_modes_of_runs(house: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        _begun(house)
    finally:
        os.umask(before)
    made = {p: p.lstat().st_mode & 0o777 for p in (house / "runs").rglob("*") if not p.is_symlink()}
    assert {mode for path, mode in made.items() if path.is_dir()} == {0o750}
    assert {mode & 0o666 for path, mode in made.items() if not path.is_dir()} == {0o640}


def test_a_sweep_typed_twice_is_the_same_and_another_is_refused(house: Path) -> None:
    points, sweep = _begun(house)
    assert begin(points, 1) == sweep == read_sweep(sweep.root) == find_sweep("tune", house / "runs")
    assert len(list((house / "runs").iterdir())) == 3
    with pytest.raises(RefusedInput, match="started with other points"):
        begin(_points(house, "optimizer.lr=1e-3,1e-5"), 1)
    with pytest.raises(RefusedInput, match=r"no such sweep.*nearest: tune"):
        find_sweep("tuna", house / "runs")


def test_a_dry_run_shows_points_and_script_and_writes_nothing(
    house: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from colosseum.cli.main import main

    monkeypatch.chdir(house)
    command = ["train", "cpt", "--stage", "debug", "--cluster", "dev-slurm", *DATA, "optimizer.min_lr=0", "name=tune"]
    command += ["--sweep", "optimizer.lr=1e-3,1e-4", "--at-once", "1", "--dry-run"]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["sweep"]) == ("colosseum.sweep-dry-run/1", "tune")
    assert [point["values"] for point in answer["points"]] == [{"optimizer.lr": "1e-3"}, {"optimizer.lr": "1e-4"}]
    assert answer["script"].endswith(SCRIPT_TEXT.partition("\n\n")[2])
    assert main(command) == 0
    assert "# array.sbatch, submitted with --array=0-1%1\n#!/bin/bash" in capsys.readouterr().out
    for words in (["--shakedown"], ["--rehearse-first"], ["--out", "kept"]):
        assert main([*command, *words]) == 2
    assert not (house / "runs").exists()
    assert not (house / "kept").exists()


def test_runs_are_compared_best_first(house: Path) -> None:
    from colosseum.launch.trials.comparison import Row, best_first

    _, sweep = _begun(house)
    point = sweep.points[0]
    losses = [None, 3.0, 2.0, float("nan"), 2.5]
    rows = [Row(index=i, point=point, job=None, val_loss=loss) for i, loss in enumerate(losses)]
    assert [row.index for row in best_first(rows)] == [2, 4, 1, 0, 3]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"name": "tune"}',
        '{"name": "tune", "at_once": 1, "job": null, "points": []}',
        '{"name": "tune", "at_once": 1, "job": null, "points": "ab"}',
        '{"name": "tune", "at_once": 1, "job": null, "points": [{"values": {"a": 1}, "run": "b", "recipe_hash": "c"}]}',
        '{"name": "tune", "at_once": 1, "job": null, "points": [{"values": {}, "run": "../b", "recipe_hash": "c"}]}',
    ],
)
def test_a_damaged_sweep_is_refused(house: Path, text: str) -> None:
    _, sweep = _begun(house)
    with_schema = text.replace('{"name"', '{"schema": "colosseum.sweep/1", "name"', 1)
    (sweep.root / "sweep.json").write_text(with_schema)
    with pytest.raises(RefusedInput, match=r"sweep\.json (is damaged|has schema)"):
        find_sweep("tune", house / "runs")


def test_a_begin_that_was_ended_half_way_is_begun_anew(house: Path) -> None:
    points, sweep = _begun(house)
    (sweep.root / "sweep.json").unlink()
    again = begin(points, 1)
    for index, point in enumerate(again.points):
        assert (sweep.root / str(index)).samefile(again.run_of(point).root)
    again.run_of(again.points[0]).submissions.write_text("{}\n")
    (sweep.root / "sweep.json").unlink()
    with pytest.raises(RefusedInput, match=r"has no sweep\.json any more, but its runs were started"):
        begin(points, 1)
    assert again.run_of(again.points[1]).root.is_dir()


def test_a_point_whose_folder_was_deleted_is_gone(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from colosseum.cli.sweep import show
    from colosseum.launch.local.processes import LocalScheduler

    _, sweep = _begun(house)
    shutil.rmtree(sweep.run_of(sweep.points[0]).root)
    show(sweep, as_json=True)
    gone, planned = json.loads(capsys.readouterr().out)["points"]
    assert (gone["state"], gone["reason"]) == ("gone", "its run folder was deleted")
    assert (planned["state"], planned["reason"]) == ("planned", "")
    with pytest.raises(RefusedInput, match=rf"were deleted \({sweep.points[0].run}\)"):
        run_here(sweep, LocalScheduler(), print)


def test_a_table_of_80_columns_cuts_no_name(
    house: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from colosseum.cli import sweep as command

    _, sweep = _begun(house)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    command.show(sweep, as_json=False)
    told = capsys.readouterr().out
    assert "…" not in told
    assert "optimizer.lr" in told
