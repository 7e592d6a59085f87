"""Site facts come from a cluster file or the command line: a stranger's recipe chooses nothing that is executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from colosseum.errors import Fault, RefusedInput
from colosseum.launch.campaigns.file import read_file
from colosseum.recipe.load import load
from tests.recipe.test_load import TINY, house, tiny  # noqa: F401

# Each would run `touch owned` (or a file or image of the recipe's author) on the machine of whoever trains it.
PAYLOADS = {
    "warnings": "env: {PYTHONWARNINGS: 'all:0:antigravity.x:0:0', BROWSER: 'touch owned %s'}",
    "megatron": "env: {MEGATRON_LM: /tmp/theirs}",
    "pythonpath": "env: {PYTHONPATH: /tmp/theirs}",
    "preload": "env: {LD_PRELOAD: /tmp/theirs.so}",
    "bash-env": "env: {BASH_ENV: /tmp/theirs.sh}",
    "venv": "venv: /tmp/theirs",
    "modules": "modules: [theirs]",
    "image": "container: {image: theirs.sqsh}",
    "runs": "paths: {runs: /tmp/theirs}",
    "slurm": "slurm: {extra: ['--comment=x']}",
}


def refused(folder: Path, *words: str) -> tuple[Fault, ...]:
    with pytest.raises(RefusedInput) as caught:
        load(str(folder / "tiny.yaml"), words)
    return caught.value.faults


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_a_recipe_sets_no_site_facts(house: Path, payload: str) -> None:  # noqa: F811
    (house / "tiny.yaml").write_text(TINY + f"cluster:\n  {payload}\n")
    (fault,) = refused(house)
    assert fault.path == f"cluster.{payload.partition(':')[0]}"
    assert fault.where == f"{house}/tiny.yaml:{(TINY + 'cluster:').count(chr(10)) + 2}"
    assert "never from a recipe" in fault.rule
    assert "theirs" not in fault.sentence(), "a value may be a secret"


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
@pytest.mark.parametrize("how", ["included", "group", "package", "global"])
def test_nor_does_any_other_file_of_its_defaults_list(house: Path, payload: str, how: str) -> None:  # noqa: F811
    section, path = f"cluster:\n  {payload}\n", house / "model/more.yaml"
    entry = {"included": "model/more@_global_", "group": "model@_global_: more", "package": "model@cluster: more"}
    path.write_text(f"# @package _global_\n{section}" if how == "global" else section)
    if how == "package":
        path.write_text(payload + "\n")
    text = TINY.replace("defaults:\n", f"defaults:\n  - {entry.get(how, 'model/more')}\n")
    (house / "tiny.yaml").write_text(text)
    faults = refused(house)
    assert {fault.path for fault in faults} >= {f"cluster.{payload.partition(':')[0]}"}
    assert all(str(path) in fault.where for fault in faults if fault.path.startswith("cluster"))


@pytest.mark.parametrize("text", ["cluster: null\n", "cluster: mine\n", "cluster: [a]\n"])
def test_a_recipe_does_not_replace_the_section_either(house: Path, text: str) -> None:  # noqa: F811
    (house / "tiny.yaml").write_text(TINY + text)
    (fault,) = refused(house)
    assert (fault.path, fault.where) == ("cluster", f"{house}/tiny.yaml:{TINY.count(chr(10)) + 1}")


@pytest.mark.parametrize("name", ["local", "dgx-h100", "theirs"])
def test_a_cluster_folder_beside_the_recipe_is_refused(house: Path, name: str) -> None:  # noqa: F811
    (house / "cluster").mkdir()
    file = house / f"cluster/{name}.yaml"
    file.write_text(f"name: {name}\nscheduler: local\nenv: {{BASH_ENV: /tmp/theirs.sh}}\n")
    faults = refused(house, f"cluster={name}")
    assert (faults[0].where, faults[0].path) == (f"{file}:1", "cluster")
    assert "~/.config/colosseum/cluster/" in faults[0].rule
    if name != "local":
        assert tiny(house).recipe.cluster.env == {}, "another name is not touched by it"


def test_a_recipe_may_name_a_cluster_file(house: Path) -> None:  # noqa: F811
    (house / "tiny.yaml").write_text(TINY.replace("defaults:\n", "defaults:\n  - cluster: mine\n"))
    assert tiny(house).recipe.cluster.name == "mine"
    assert tiny(house, cluster="dgx-h100").recipe.cluster.name == "dgx-h100"


def test_the_command_line_and_a_cluster_file_do(house: Path) -> None:  # noqa: F811
    (house / "home/colosseum/cluster/mine.yaml").write_text("name: mine\nscheduler: local\nenv: {A: file}\n")
    assert tiny(house, "cluster=mine").recipe.cluster.env == {"A": "file"}
    assert tiny(house, "cluster=mine", "cluster.env.A=word", "cluster.venv=/v").recipe.cluster.env == {"A": "word"}


@pytest.mark.parametrize("word", ["cluster.env.BASH_ENV=/tmp/theirs.sh", "+cluster.venv=/tmp/theirs", "~cluster.venv"])
@pytest.mark.parametrize("place", ["overrides: [{word!r}]", "for_engine: {{mcore: [{word!r}]}}"])
def test_a_campaign_file_sets_no_site_facts(tmp_path: Path, word: str, place: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"name: c\nstages:\n  - name: one\n    recipe: debug/sft\n    {place.format(word=word)}\n")
    with pytest.raises(RefusedInput, match="stage one: site facts come from a cluster file") as caught:
        read_file(str(file))
    assert "theirs" not in str(caught.value)


CLUSTER_FILE = """
name: mine
scheduler: slurm
venv: {path}
container:
  image: {image}
  images: {{nemo1: {image}, nemo2: "nvcr.io#nvidia/nemo:25.04"}}
  mounts: ["./data:/data", "~/scratch:/scratch:ro", "/a:/a", "tmpfs:/x"]
"""


@pytest.mark.parametrize(
    ("path", "absolute"),
    [
        ("env", "{folder}/env"),
        ("./env.sqsh", "{folder}/env.sqsh"),
        ("../env.sqsh", "{up}/env.sqsh"),
        ("a/b.sqsh", "{folder}/a/b.sqsh"),
        ("~/env.sqsh", "{home}/env.sqsh"),
        ("/a/env.sqsh", "/a/env.sqsh"),
    ],
)
def test_paths_of_a_cluster_file_are_anchored_at_its_folder(
    path: str, absolute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, home, elsewhere = tmp_path / "config", tmp_path / "home", tmp_path / "elsewhere"
    folder = config / "colosseum" / "cluster"
    for each in (folder, home, elsewhere):
        each.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    image = path if path.endswith(".sqsh") else "ubuntu:24.04"
    (folder / "mine.yaml").write_text(CLUSTER_FILE.format(path=path, image=image))
    expected = absolute.format(folder=folder, up=folder.parent, home=home)
    for header in ("", "# @package _global_\ncluster:\n"):
        text = CLUSTER_FILE.format(path=path, image=image)
        if header:
            text = header + "".join(f"  {line}\n" for line in text.splitlines())
        (folder / "mine.yaml").write_text(text)
        cluster = load("generic", cluster="mine").recipe.cluster
        assert cluster.container is not None
        assert cluster.venv == expected
        assert cluster.container.image == (expected if image == path else image), "a registry's is left alone"
        assert cluster.container.images == {"nemo1": cluster.container.image, "nemo2": "nvcr.io#nvidia/nemo:25.04"}
        assert cluster.container.mounts == (f"{folder}/data:/data", f"{home}/scratch:/scratch:ro", "/a:/a", "tmpfs:/x")
