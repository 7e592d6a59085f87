"""``--dry-run``: what would be started, and the bundle it would start."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from colosseum.bundle import read_bundle, verify_bundle
from colosseum.recipe.hash import recipe_hash
from colosseum.recipe.source import FromPath
from tests.cli.conftest import Cli

FP8 = ("train", "cpt", "--stage", "fp8", "--cluster", "dgx-h100", "--dry-run")
SHELLCHECK = shutil.which("shellcheck", path=str(Path(sys.executable).parent))


def test_plan_and_job_script_of_the_case_study(cli: Cli) -> None:
    """2,880 H100 as 360 nodes; TP8 PP10 VPP10 CP4 leaves DP9; GBS 1260 over DP9 is 140 microbatches."""
    done = cli(*FP8)
    assert done.code == 0
    for text in ("TP8 PP10 VPP10 CP4 DP9", "140 micro-batches of 1", "360 nodes"):
        assert text in done.out
    for line in ("#SBATCH --nodes=360", "#SBATCH --ntasks-per-node=8", "#SBATCH --time=1-00:00:00"):
        assert line in done.out.splitlines()
    data = json.loads(cli(*FP8, "--json").out)
    assert data["schema"] == "colosseum.dry-run/1"
    assert data["plan"]["layout"]["dp"] == 9
    assert data["script"]["name"] == "job.sbatch"
    assert data["script"]["text"] in done.out
    assert data["bundle"] is None


def test_the_kept_bundle_is_whole_and_says_what_was_shown(cli: Cli, tmp_path: Path) -> None:
    data = json.loads(cli(*FP8, "--out", "kept", "optimizer.lr=2e-5", "--json").out)
    kept = tmp_path / "kept"
    assert verify_bundle(kept) == []
    bundle = read_bundle(kept)
    assert bundle.recipe.optimizer.lr == 2e-5
    assert bundle.manifest["recipe_hash"] == recipe_hash(bundle.recipe) == data["recipe_hash"]
    assert bundle.manifest["container"] == {"image": "/lustre/colosseum/images/colosseum-mcore.sqsh", "digest": None}
    assert bundle.manifest["versions"]["colosseum"]
    assert (kept / "job.sbatch").read_text() == data["script"]["text"]
    assert "auto" not in json.dumps(yaml.safe_load((kept / "recipe.yaml").read_text())["parallelism"])
    variables = {v["name"]: v for v in json.loads((kept / "env.json").read_text())["variables"]}
    assert variables["CUDA_DEVICE_MAX_CONNECTIONS"]["value"] == "1"
    assert all(v["reason"] for v in variables.values())
    again = cli(*FP8, "--out", "kept")
    assert again.code == 2
    assert "never overwritten" in again.err


def test_bundle_verify_names_what_changed(cli: Cli, tmp_path: Path) -> None:
    assert cli(*FP8, "--out", "kept").code == 0
    assert cli("bundle", "verify", "kept").code == 0
    (tmp_path / "kept/job.sbatch").write_text("rm -rf /")
    (tmp_path / "kept/more").write_text("")
    (tmp_path / "kept/env.json").unlink()
    done = cli("bundle", "verify", "kept", "--json")
    assert done.code == 2
    assert json.loads(done.out)["problems"] == ["more was added", "env.json is missing", "job.sbatch was changed"]


@pytest.mark.parametrize(("text", "holds"), [("- name: debug\n", "a list"), ("hello\n", "text"), ("", "nothing")])
def test_bundle_verify_of_a_recipe_that_is_none_is_one_sentence(
    cli: Cli, tmp_path: Path, text: str, holds: str
) -> None:
    """A stranger's bundle: its sums are right."""
    assert cli(*FP8, "--out", "kept").code == 0
    manifest = json.loads((tmp_path / "kept/manifest.json").read_text())
    manifest["files"]["recipe.yaml"] = hashlib.sha256(text.encode()).hexdigest()
    (tmp_path / "kept/manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "kept/recipe.yaml").write_text(text)
    for verb in ("verify", "run"):
        done = cli("bundle", verb, "kept")
        said = f"error: kept: recipe.yaml cannot be read: it holds {holds} and no section of keys\n"
        assert (done.code, " ".join(done.err.split()) + "\n") == (2, said)
    assert cli("bundle", "verify", "kept").code == 2
    assert cli("bundle", "run", "kept").code == 2


def test_too_large_for_this_machine_is_a_warning_here(cli: Cli) -> None:
    done = cli("train", "cpt", "--stage", "bf16-4k", "--dry-run")
    assert done.code == 0
    assert "needs 2,880 x h100-sxm" in done.said


@pytest.mark.parametrize("cluster", ["local", "dgx-h100"])
def test_no_secret_and_no_setting_of_the_user_enters_a_bundle(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t-value")
    monkeypatch.setenv("NCCL_DEBUG", "s3cr3t-value")
    assert cli("train", "cpt", "--stage", "debug", "--cluster", cluster, "--dry-run", "--out", "kept").code == 0
    assert not any(b"s3cr3t-value" in p.read_bytes() for p in (tmp_path / "kept").rglob("*") if p.is_file())
    words = ("train", "cpt", "--stage", "debug", "--cluster", cluster, "--dry-run")
    done = cli(*words, "cluster.env={HF_TOKEN: s3cr3t-value}")
    assert done.code == 2
    assert "looks like a secret" in done.err
    assert "s3cr3t-value" not in done.err + done.out


def test_no_value_reaches_a_shell_unquoted(cli: Cli, tmp_path: Path) -> None:
    evil = "a'$(touch owned)`touch owned`;\"& b"
    words = ["train", "cpt", "--stage", "debug", "--dry-run", f"cluster.env.SITE={json.dumps(evil)}"]
    assert cli(*words, "--out", "kept").code == 0
    script = tmp_path / "kept/launch.sh"
    assert SHELLCHECK is not None
    # SC2016 would have us expand what must not be expanded.
    subprocess.run([SHELLCHECK, "--exclude=SC2016", script], check=True)
    # The script's own settings, read by the shell that will read them.
    text = script.read_text().replace("exec env", "env").split("python -P -m")[0] + "bash -c 'printf %s \"$SITE\"'"
    assert subprocess.run(["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True).stdout == evil
    assert not (tmp_path / "owned").exists()


def test_relative_paths_are_read_from_where_the_command_is_typed(cli: Cli, tmp_path: Path) -> None:
    words = ("data.blend=[{path: mine/tokens, weight: 1}]", "checkpoint.from=old/iter_0000100")
    assert cli("train", "cpt", "--stage", "debug", *words, "--dry-run", "--out", "kept").code == 0
    recipe = read_bundle(tmp_path / "kept").recipe
    assert recipe.data.blend[0].path == str(tmp_path / "mine/tokens")
    assert recipe.checkpoint.source == FromPath(str(tmp_path / "old/iter_0000100"))


@pytest.mark.parametrize("field", ["cluster.paths.runs", "data.cache_dir", "checkpoint.from"])
def test_a_home_that_does_not_exist_is_refused_by_name(cli: Cli, tmp_path: Path, field: str) -> None:
    done = cli("train", "cpt", "--stage", "debug", f"{field}=~no-such-user/x", "--dry-run")
    assert (done.code, f"{field} = ~no-such-user/x: is in a home that does not exist" in done.said) == (2, True), done
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_runs_in_a_home_that_does_not_exist_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = cli("jobs", "list", "--runs", "~no-such-user/x")
    assert (done.code, "--runs = ~no-such-user/x: is in a home that does not exist" in done.said) == (2, True)
    monkeypatch.setenv("COLOSSEUM_RUNS", "~no-such-user/x")
    done = cli("jobs", "list")
    assert (done.code, "COLOSSEUM_RUNS = ~no-such-user/x" in done.said) == (2, True)


def test_the_path_of_a_reference_policy_is_read_from_there_too(cli: Cli, tmp_path: Path) -> None:
    words = ("align", "dpo", "--stage", "debug", "task.reference_from=old/iter_0000100")
    assert cli(*words, "--dry-run", "--out", "kept").code == 0
    task = read_bundle(tmp_path / "kept").recipe.task
    assert task.kind == "dpo"
    assert task.reference_from == FromPath(str(tmp_path / "old/iter_0000100"))
    done = cli(*words, "checkpoint.from=none")
    assert done.code == 2
    assert "task.reference_from" in done.err


def test_what_an_engine_cannot_do_is_refused_with_the_place_that_asked(cli: Cli) -> None:
    done = cli("align", "sft", "engine=megatron-lm", "--cluster", "dgx-h100", "--dry-run", "--json")
    assert done.code == 2
    fault = next(f for f in json.loads(done.out)["faults"] if f["path"] == "task.kind")
    assert fault["value"] == "sft"
    assert "nemo1 and nemo2 do" in fault["rule"]
    assert fault["where"].startswith("recipes/colosseum-355b/sft.yaml:")
    assert cli("validate", "colosseum-355b/sft", "engine=megatron-lm", "--cluster", "dgx-h100").code == 2
    assert cli("align", "sft", "--cluster", "dgx-h100", "--dry-run").code == 0
    assert cli("align", "dpo", "--cluster", "dgx-h100", "--dry-run").code == 0


@pytest.mark.parametrize("engine", ["megatron-lm", "nemo1", "nemo2", "bridge"])
def test_the_fp8_stage_with_each_engine_as_typed(cli: Cli, engine: str) -> None:
    words = ("train", "cpt", "--stage", "fp8", f"engine={engine}", "--cluster", "dgx-h100", "--dry-run")
    done, strict = cli(*words), cli(*words, "--strict")
    assert (done.code, strict.code) == (0, 2 if engine == "nemo1" else 0)
    assert ("Adam's moments begin at zero" in done.said) == (engine == "nemo1")
    assert engine != "nemo1" or "checkpoint.load" in strict.err
