"""The command's words and streams: whatever they are, one sentence and the right exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

COLOSSEUM = str(Path(sys.executable).with_name("colosseum"))


def shell(line: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    command = ["bash", "-c", line.replace("colosseum ", f"'{COLOSSEUM}' ")]
    return subprocess.run(
        command,
        capture_output=True,
        env={**os.environ, "COLUMNS": "80", **env},
        timeout=60,
        # A test run that was started in the background ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("colosseum recipes >/dev/full", 3, "could not be written: No space left"),
        ("colosseum recipes --json >/dev/full", 3, "could not be written: No space left"),
        ("colosseum recipes >&-", 3, "stdout is closed"),
        ("colosseum recipes --json >&-", 3, "stdout is closed"),
        ("colosseum recipes >/dev/null 2>&-", 0, ""),
        ("colosseum nothing >/dev/null 2>&-", 2, ""),
        (r"colosseum validate $'a\xff'", 2, r"a\udcff': arguments must be UTF-8"),
        (r"colosseum train cpt generic --dry-run --json name=$'\xff'", 2, "UTF-8"),
    ],
)
def test_streams_and_bytes(line: str, code: int, said: str) -> None:
    done = shell(line)
    error = done.stderr.decode()
    assert done.returncode == code, error
    assert said in " ".join(error.split())
    assert error.count("\n") <= 2


def test_a_terminal_of_an_old_encoding() -> None:
    done = shell("colosseum explain debug/sft task && colosseum plan debug/cpt-4k-bf16", PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, b"")
    done = shell("colosseum validate generic name=größe", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert rb"gr\xf6\xdfe" in done.stderr


def test_interrupted_while_it_loads(tmp_path: Path) -> None:
    """Ctrl-C in the first tenth of a second meets an import, here of a package that takes for ever."""
    (tmp_path / "typer.py").write_text("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
    done = shell(f"'{sys.executable}' -m colosseum.__main__ recipes", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"interrupted\n")


@pytest.mark.parametrize(
    "words",
    [
        ("validate", ""),
        ("jobs", "list", "--runs="),
        ("jobs", "list", "--runs", ""),
        ("data", "tokenize", "a.txt", "--tokenizer", "t.json", "-o", ""),
        ("plan", "generic", "--batch", ""),
    ],
)
def test_a_shell_variable_that_is_empty(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    done = cli(*words)
    assert done.code == 2
    assert "is a shell variable not set?" in done.said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prefix", [".", "..", "/", "folder"])
def test_an_output_that_is_a_folder(cli: Cli, inputs: Path, prefix: str) -> None:
    (inputs / "folder").mkdir()
    (inputs / "a.txt").write_text("a")
    train = ("data", "tokenize", "a.txt", "--tokenizer", "new.json", "--train-tokenizer", "257")
    done = cli(*train, "-o", prefix)
    assert done.code == 2
    assert "is a folder" in done.said


def test_lines_of_a_batch_that_are_no_questions(cli: Cli, tmp_path: Path) -> None:
    """Each line has one answer, in its order, also the line of five million characters."""
    lines = [
        '{"id": NaN}',
        '{"id": 1e999}',
        '{"id": "\\ud800", "overrides": []}',
        '{"id": 4, "overrides": ["name=\\ud800"]}',
        '{"id": 5, "overrides": ["optimizer.lr=1e-300"]}',
        '{"id": 6, "overrides": ["model.rope_base=1e-300"]}',
        '{"id": 7, "overrides": ["train.steps=1' + "0" * 400 + '"]}',
        "x" * 5_000_000,
        "[" * 100_000,
        "\xff",
        '{"id": 11}',
    ]
    (tmp_path / "asked.jsonl").write_bytes("\n".join(lines).encode("latin-1"))
    done = cli("plan", "debug/cpt-4k-bf16", "--batch", "asked.jsonl")
    assert done.code == 0, done.err
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert [a["id"] for a in answers] == [None, None, "\ud800", None, 5, 6, 7, None, None, None, 11]
    plans = [a["schema"] == "colosseum.plan/1" for a in answers]
    assert plans == [False, False, True, False, plans[4], plans[5], False, False, False, False, True]
    assert done.out.isascii()


def test_thousands_of_unknown_options_are_read_soon(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(" ".join(f"--num-layerz-{i} 3" for i in range(20_000)))
    done = cli("import-config", "megatron-args", "job.sh", "--accept")
    assert done.code == 0
    assert "did you mean --num-layers" in done.said
    assert "and 19,800 more" in done.said


def test_an_imported_file_cannot_drive_the_terminal(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("--num-\x1b[2Jx 3 --save \u202egnp.exe --num-layers 4")
    done = cli("import-config", "megatron-args", "job.sh")
    for text in (done.out, done.err):
        assert all(c.isprintable() or c in "\n\t" for c in text), text
