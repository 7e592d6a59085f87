"""What a cluster file may ask Slurm for, as the job script says it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from colosseum.errors import RefusedInput
from colosseum.launch.bundles import inputs
from colosseum.launch.bundles.compile import Compiled
from colosseum.launch.runs.submit import prepare, runs_root, warnings
from colosseum.launch.slurm import job_script
from colosseum.recipe.load import load, load_cluster


def compiled(*words: str) -> Compiled:
    recipe = load("colosseum-355b/cpt-16k-expand", words, cluster="dgx-h100").recipe
    return prepare(recipe, Path("/data"))


@pytest.mark.parametrize(
    ("form", "option"),
    [
        ("gres", "--gres=gpu:8"),
        ("gres:h100", "--gres=gpu:h100:8"),
        ("gpus-per-node", "--gpus-per-node=8"),
        ("gpus-per-node:h100", "--gpus-per-node=h100:8"),
    ],
)
def test_gpus_are_asked_for_with_or_without_a_type(form: str, option: str) -> None:
    assert f"#SBATCH {option}" in compiled(f"cluster.slurm.gpu_request={form}").script.splitlines()


@pytest.mark.parametrize("form", ["gres:", "gres:a b", "gpus:h100", "gpus-per-node:h100:8"])
def test_another_form_is_refused(form: str) -> None:
    with pytest.raises(RefusedInput, match="gpu_request"):
        load("generic", [f"cluster.slurm.gpu_request='{form}'"])


@pytest.mark.parametrize(
    "option",
    [
        "--tasks-per-node=1",
        "--tasks-per=1",
        "--gpus-per-task=1",
        "--gpus-per-t=1",
        "--gpus=8",
        "--ntasks-per-gpu=1",
        "--ntasks-per-socket=1",
        "--gpus-per-socket=4",
    ],
)
def test_extra_options_cannot_undo_ours(option: str) -> None:
    recipe = load("colosseum-355b/cpt-16k-expand", [f"cluster.slurm.extra=['{option}']"], cluster="dgx-h100").recipe
    (fault,) = job_script.faults(recipe)
    assert (fault.path, fault.value) == ("cluster.slurm.extra", option)


@pytest.mark.parametrize("option", ["--mem=4G", "--me=4G", "--mem-per-cpu=1G", "--oversubscribe", "--over", "--share"])
def test_a_whole_node_is_not_given_up_again(option: str) -> None:
    def paths(exclusive: str) -> list[str]:
        words = [f"cluster.slurm.extra=['{option}']", f"cluster.slurm.exclusive={exclusive}"]
        return [
            f.path for f in job_script.faults(load("colosseum-355b/cpt-16k-expand", words, cluster="dgx-h100").recipe)
        ]

    assert paths("true") == ["cluster.slurm.extra"]
    assert paths("false") == []


def test_a_job_waits_for_switches_only_if_it_names_some() -> None:
    lines = compiled("cluster.slurm.switches=2", "cluster.slurm.switches_wait=90m").script.splitlines()
    assert "#SBATCH --switches=2@0-01:30:00" in lines
    assert "#SBATCH --switches=2" in compiled("cluster.slurm.switches=2").script.splitlines()
    with pytest.raises(RefusedInput, match=r"switches_wait.*needs slurm\.switches"):
        compiled("cluster.slurm.switches_wait=90m")


def test_a_scratch_folder_is_absolute_and_mounted() -> None:
    lines = compiled("cluster.paths.scratch=/raid/x").script.splitlines()
    assert "scratch=/raid/x" in lines
    assert any(line.startswith("mounts=") and line.endswith(",/raid/x:/raid/x") for line in lines)
    with pytest.raises(RefusedInput, match=r"paths\.scratch.*absolute"):
        compiled("cluster.paths.scratch=x")


def test_a_job_of_more_nodes_than_the_cluster_has_is_said() -> None:
    said = {nodes: warnings(compiled(f"cluster.nodes={nodes}")) for nodes in (359, 360)}
    sentence = "the job needs 360 nodes and cluster dgx-h100 has 359 (cluster.nodes)"
    assert sentence in said[359] and set(said[359]) - set(said[360]) == {sentence}


def test_a_home_is_expanded_in_the_place_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLOSSEUM_RUNS", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    cluster = load_cluster("local")
    cluster = cluster.model_copy(update={"paths": cluster.paths.model_copy(update={"runs": "~/x"})})
    assert runs_root(None, cluster) == Path("/home/someone/x")


def test_site_paths_that_a_job_would_trip_over_are_refused_before_the_queue(tmp_path: Path) -> None:
    def faults(runs: Path, *words: str, cluster: str) -> set[tuple[str, object]]:
        recipe = load("generic", words, cluster=cluster).recipe
        found = inputs.missing(recipe, runs)
        return {(fault.path, fault.value) for fault in found if fault.path.startswith("cluster.")}

    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").touch()
    gone, there = str(tmp_path / "gone"), str(tmp_path / "venv")
    assert faults(tmp_path, f"cluster.venv={gone}", cluster="dev-slurm") == {("cluster.venv", gone)}
    assert faults(tmp_path, f"cluster.venv={there}", cluster="dev-slurm") == set()
    unseen = str(tmp_path / "on-the-nodes" / "venv")
    assert faults(tmp_path, f"cluster.venv={unseen}", cluster="dev-slurm") == set(), "only the nodes may have it"
    comma = tmp_path / "a,b"
    assert faults(comma, cluster="dgx-h100") == {("cluster.paths.runs", str(comma))}
    assert faults(comma, cluster="dev-slurm") == set(), "nothing is mounted without a container"


@pytest.mark.parametrize(
    ("image", "rule"),
    [
        ("~no-such-user/nemo.sqsh", "is in a home that does not exist"),
        ("nvcr.io/nvidia/nemo:25.04", "REGISTRY#IMAGE (nearest: nvcr.io#nvidia/nemo:25.04)"),
        ("docker://nvcr.io/nvidia/nemo:25.04", "nearest: nvcr.io#nvidia/nemo:25.04"),
        ("localhost:5000/a/b", "nearest: localhost:5000#a/b"),
    ],
)
def test_an_image_that_pyxis_would_look_for_elsewhere_is_refused(image: str, rule: str) -> None:
    with pytest.raises(RefusedInput) as refused:
        compiled(f"cluster.container.image='{image}'")
    assert rule in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [("cluster.container.mounts=['~no-such-user/a:/b']",), ("cluster.venv=~no-such-user/a", "cluster.container=null")],
)
def test_a_path_in_a_home_that_does_not_exist_is_refused(words: tuple[str, ...]) -> None:
    """The job would look for a folder named ~no-such-user, or use the next python in PATH."""
    with pytest.raises(RefusedInput, match="is in a home that does not exist"):
        compiled(*words)


def test_an_engine_without_an_image_is_refused() -> None:
    with pytest.raises(RefusedInput, match="names no image of engine mcore"):
        compiled("cluster.container.image=null")


@pytest.mark.parametrize("image", ["nvcr.io#nvidia/nemo:25.04", "ubuntu", "nvidia/cuda:12.4", "docker://a.b#c/d"])
def test_registry_images_reach_pyxis_as_they_are(image: str) -> None:
    assert f"container={shlex.quote(image)}" in compiled(f"cluster.container.image='{image}'").script.splitlines()


def test_an_image_file_is_expanded_and_looked_for_where_it_can_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    def judged(image: str) -> tuple[list[str], list[str]]:
        made = compiled(f"cluster.container.image={image}")
        missing = [f.rule for f in inputs.missing(made.recipe, tmp_path) if f.path == "cluster.container.image"]
        return missing, [text for text in warnings(made) if "container.image" in text]

    assert judged("~/nemo.sqsh") == (["does not exist"], [])
    (tmp_path / "nemo.sqsh").touch()
    assert judged("~/nemo.sqsh") == ([], [])
    assert f"container={tmp_path}/nemo.sqsh" in compiled("cluster.container.image=~/nemo.sqsh").script.splitlines()
    assert judged("/no/such/nemo.sqsh")[0] == []
    assert judged("/no/such/nemo.sqsh")[1] == [
        "cluster.container.image = /no/such/nemo.sqsh: cannot be checked from this machine"
    ]
