"""Verbs that read: their documents, their refusals, their exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colosseum.cli.main import VERBS, load_verb
from tests.cli.conftest import Cli

COLOSSEUM = Path(sys.executable).parent / "colosseum"


def test_help_names_every_verb(cli: Cli) -> None:
    done = cli("--help")
    assert done.code == 0
    assert all(f" {verb.name} " in done.out for verb in VERBS)
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v.name)
def test_every_verb_explains_itself(cli: Cli, verb: object) -> None:
    done = cli(verb.name, "--help")  # type: ignore[attr-defined]
    assert done.code == 0
    assert f"colosseum {verb.name}" in done.out  # type: ignore[attr-defined]


def test_recipes(cli: Cli) -> None:
    rows = json.loads(cli("recipes", "--json").out)["recipes"]
    assert {"colosseum-355b/cpt-fp8", "debug/dpo", "generic"} <= {row["name"] for row in rows}
    assert all(row["summary"] for row in rows)
    assert "debug/sft" in cli("recipes").out


def test_show_is_yaml_that_says_the_same(cli: Cli, tmp_path: Path) -> None:
    """What ``show`` prints is a recipe again, with the same values."""
    first = cli("show", "debug/cpt-4k-bf16", "optimizer.lr=0.003")
    assert first.code == 0
    (tmp_path / "again.yaml").write_text(first.out)
    assert cli("show", "again.yaml").out == first.out
    data = json.loads(cli("show", "debug/cpt-4k-bf16", "optimizer.lr=0.003", "--json").out)
    assert data["schema"] == "colosseum.recipe/1"
    assert data["recipe"]["optimizer"]["lr"] == 0.003
    assert cli("show", "generic", "--section", "batch").out.startswith("batch:\n  gbs:")
    assert cli("show", "generic", "--section", "bach").code == 2


def test_validate_tells_every_fault_with_its_place(cli: Cli) -> None:
    words = ("validate", "debug/cpt-4k-bf16", "batch.gbs=17", "model.num_layer=3")
    done = cli(*words)
    assert done.code == 2
    assert done.out == ""
    for text in ("2 faults", "batch.gbs = 17", "nearest: 16", "model.num_layer", "num_layers", "[command line]"):
        assert text in done.err
    refusal = json.loads(cli(*words, "--json").out)
    assert refusal["schema"] == "colosseum.refusal/1"
    fault = next(f for f in refusal["faults"] if f["path"] == "batch.gbs")
    assert fault["value"] == 17
    assert 16 in fault["nearest"]
    assert fault["where"] == "command line"
    assert json.loads(cli("validate", "generic", "--json").out)["valid"] is True


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("debug/dpo", "engine=nemo2", "hardware=h100-sxm"), "task.kind"),
        (("debug/cpt-4k-bf16", "tokenizer.path=null", "data.eod_mask_loss=true"), "tokenizer.path"),
        (("generic", "cluster.slurm.extra=[--ntasks=3]", "--cluster", "dgx-h100"), "cluster.slurm.extra"),
    ],
)
def test_validate_refuses_what_cannot_be_started(cli: Cli, words: tuple[str, ...], path: str) -> None:
    done = cli("validate", *words)
    assert done.code == 2
    assert path in done.err


def test_every_fault_has_a_name_and_a_place(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not there, a section that only a key made, a cluster that the environment chose."""
    for name in ("debug/sf", "mine.yaml"):
        assert name in cli("validate", name).said
    (fault,) = json.loads(cli("validate", "generic", "modle.layers=3", "--json").out)["faults"]
    assert (fault["path"], fault["nearest"], fault["where"]) == ("modle", ["model"], "command line")
    (tmp_path / "mine.yaml").write_text("defaults: [generic, _self_]\nmodle:\n  layers: 3\n")
    (fault,) = json.loads(cli("validate", "mine.yaml", "--json").out)["faults"]
    assert fault["where"] == "mine.yaml:2"
    monkeypatch.setenv("COLOSSEUM_CLUSTER", "nowhere")
    (fault,) = json.loads(cli("show", "generic", "--json").out)["faults"]
    assert (fault["value"], fault["where"]) == ("nowhere", "$COLOSSEUM_CLUSTER")
    assert (
        json.loads(cli("show", "generic", "--cluster", "nowhere", "--json").out)["faults"][0]["where"] == "command line"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("trian",),
        ("validate",),
        ("validate", "--jsonn"),
        ("validate", "batch.gbs=16"),
        ("validate", "generic", "debug/dpo"),
        ("validate", "no/such"),
        ("validate", "missing.yaml"),
        ("train", "cpt"),
        ("train", "cpt", "--stage", "sft", "--dry-run"),
        ("train", "cpt", "generic", "--stage", "fp8", "--dry-run"),
        ("train", "cpt", "debug/sft", "--dry-run"),
        ("train", "cpt", "generic", "--cluster", "nowhere", "--dry-run"),
        ("train", "cpt", "generic", "--out", "kept"),
        ("train", "cpt", "--from", "no-such-run"),
        ("align", "sft", "engine=megatron-lm", "--dry-run", "--cluster", "dgx-h100"),
        ("bundle", "run", "no-such-bundle"),
        ("bundle", "verify", "no-such-bundle"),
    ],
)
def test_refusals_exit_2_and_leave_nothing(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    before = set(tmp_path.rglob("*"))
    done = cli(*words, "--json")
    assert done.code == 2
    refusal = json.loads(done.out)
    assert refusal["schema"] == "colosseum.refusal/1"
    assert all(fault["rule"] for fault in refusal["faults"])
    plain = cli(*words)
    assert plain.code == 2
    assert plain.out == ""
    assert plain.err.startswith("error: ")
    assert "Traceback" not in plain.err
    assert set(tmp_path.rglob("*")) == before


def test_a_hostile_value_cannot_drive_the_terminal(cli: Cli) -> None:
    done = cli("validate", "generic", "name=\x1b[2J[red]x[/red]")
    assert done.code == 2
    assert "\x1b[2J" not in done.err
    assert "[red]x[/red]" in done.err


def test_cluster_list(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLOSSEUM_CLUSTER", "dgx-h100")
    data = json.loads(cli("cluster", "list", "--json").out)
    assert data["default"] == "dgx-h100"
    assert {c["file"]: c["nodes"] for c in data["clusters"]} == {"dev-slurm": 4, "dgx-h100": 360, "local": 1}
    assert "dgx-h100" in cli("cluster", "list").out


def test_a_bug_is_one_sentence_and_a_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("colosseum.cli.recipes.load", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = cli("validate", "generic")
    assert done.code == 1
    assert done.err.count("\n") == 1
    (saved,) = tmp_path.glob("colosseum-bug-*.txt")
    assert str(saved) in done.err
    assert "ZeroDivisionError: oops" in saved.read_text()
    document = json.loads(cli("validate", "generic", "--json").out)
    assert document["schema"] == "colosseum.error/1"
    assert document["exit_code"] == 1


def test_a_login_node_needs_no_torch(tmp_path: Path) -> None:
    """All verbs in one process, which ends without torch, megatron or a GPU library loaded."""
    program = """
import contextlib, io, sys
from colosseum.cli.main import VERBS, main
commands = [
    ["--help"], ["--version"], ["recipes"], ["show", "generic"], ["validate", "debug/cpt-fp8"], ["cluster", "list"],
    ["train", "cpt", "--stage", "fp8", "--cluster", "dgx-h100", "--dry-run", "--out", "kept"],
    ["align", "dpo", "--stage", "debug", "--dry-run", "--json"],
    ["bundle", "verify", "kept"],
]
for words in [*commands, *([verb.name, "--help"] for verb in VERBS)]:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(words) == 0, words
    loaded = {"torch", "megatron", "transformer_engine"} & sys.modules.keys()
    assert not loaded, (words, loaded)
"""
    env = {**os.environ, "XDG_CONFIG_HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, (*words, name))


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_help_is_shown_as_it_is_written(verb: str, cli: Cli) -> None:
    """At 80 columns no text is cut off, brackets are no markup and paragraphs are not broken."""
    for words, command in _commands(load_verb(verb), (verb,)):
        out = cli(*words, "--help").out
        assert "…" not in re.sub(r",…|CKPT…", "", out), words
        shown = " ".join(out.split())
        for paragraph in command.help.replace("\\[", "[").split("\n\n"):
            assert " ".join(paragraph.split()) in shown, words


def test_help_loads_no_heavy_package() -> None:
    program = "import sys; from colosseum.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"pydantic", "hydra", "omegaconf", "numpy", "yaml"} & set(done.stderr.split())


def test_a_reader_that_leaves_is_no_fault() -> None:
    shell = f"set -o pipefail; '{COLOSSEUM}' show generic | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"})
    assert done.stdout == "name: generic\n"
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0 if all was written before head left


def test_shell_completion(tmp_path: Path) -> None:
    def complete(*words: str) -> list[str]:
        env = {
            **os.environ,
            "_COLOSSEUM_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("colosseum", *words)),
            "COMP_CWORD": str(len(words)),
        }
        return subprocess.run([COLOSSEUM], env=env, capture_output=True, text=True).stdout.split()

    assert complete("tr") == ["train"]
    assert complete("show", "debug/cpt") == ["debug/cpt-16k-expand", "debug/cpt-4k-bf16", "debug/cpt-fp8"]
    assert complete("show", "generic", "optimizer.be") == ["optimizer.beta1=", "optimizer.beta2="]


def test_the_home_folder_may_be_read_only_or_absent(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": "/proc/nowhere", "TMPDIR": str(tmp_path)}
    words = ["train", "cpt", "--stage", "debug", "--dry-run"]
    done = subprocess.run([COLOSSEUM, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
