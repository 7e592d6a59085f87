"""What ``colosseum cluster check --job`` makes of the nodes' answers; the job itself: tests/slurm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from colosseum.launch.slurm.cluster_check import _SHOW, OLD_ENOUGH, _memlock, _Node, _scratch
from colosseum.recipe.load import load_cluster


def answer(probe: Path, scratch: str) -> _Node:
    words = ["bash", "-c", _SHOW, "check", str(probe), scratch, OLD_ENOUGH]
    return _Node(*subprocess.run(words, capture_output=True, text=True, check=True).stdout.rstrip("\n").split("|"))


def test_a_node_says_what_it_has(tmp_path: Path) -> None:
    probe, scratch = tmp_path / "probe", tmp_path / "a folder"
    probe.write_text("word")
    scratch.mkdir()
    here = answer(probe, str(scratch))
    assert (here.word, here.python3) == ("word", "yes")
    assert here.scratch.isdecimal() and list(scratch.iterdir()) == []
    assert here.memlock == "unlimited" or here.memlock.isdecimal()
    assert answer(probe, "").scratch == ""
    blind = answer(tmp_path / "none", "/no/such/folder")
    assert (blind.word, blind.scratch, blind.host) == ("", "-", here.host)


@pytest.mark.parametrize(
    ("kib", "passed", "says"),
    [("unlimited", True, "unlimited"), ("8192", None, "at most 8.0 MiB on b"), ("1048576", None, "1.0 GiB on b")],
)
def test_locked_memory_is_judged_by_the_node_with_least(kib: str, passed: bool | None, says: str) -> None:
    nodes = [_Node("w", "0", host, "yes", limit, "") for host, limit in (("a", "unlimited"), ("b", kib))]
    without_rdma = load_cluster("dev-slurm")
    verdict = _memlock(without_rdma, nodes)
    assert verdict.passed is passed and says in verdict.detail
    assert _memlock(load_cluster("dgx-h100"), nodes).passed is (passed or False)


@pytest.mark.parametrize(("kib", "passed"), [(1 << 20, True), ((1 << 20) - 1, False), ("-", False), ("", False)])
def test_a_full_scratch_folder_is_said(kib: int | str, passed: bool) -> None:
    nodes = [_Node("w", "0", "a", "yes", "unlimited", str(1 << 30)), _Node("w", "0", "b", "yes", "unlimited", str(kib))]
    verdict = _scratch("/raid", nodes)
    assert verdict.passed is passed and " b" in verdict.detail
