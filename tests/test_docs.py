"""Every command in README.md and docs/ is run here, or marked with the reason why not and checked against the CLI."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import typer

from colosseum.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
REASONS = {"needs a cluster", "needs a GPU", "with a run of yours", "with files of yours", "takes minutes", "set-up"}
"""Why a block is not run: the title that a reader sees above it."""
BLOCK = re.compile(r'^( *)```(\w+)(?: title="([^"]*)")?\n(.*?)^\1```$', re.DOTALL | re.MULTILINE)
OURS = ("colosseum ", "scripts/", "python -m colosseum")


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    title: str
    text: str

    @property
    def commands(self) -> Iterator[str]:
        """Lines without comments; a line that ends in a backslash goes on in the next."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if command := re.split(r"\s#|^#", line.strip())[0].strip():
                yield command


def _blocks() -> Iterator[Block]:
    for page in PAGES:
        for _, language, title, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            yield Block(page, language, title, text)


BLOCKS = list(_blocks())
SHELL = [b for b in BLOCKS if b.language == "sh"]
RUN = [(b.page, c) for b in SHELL if not b.title for c in b.commands]
MARKED = [(b.page, c) for b in SHELL if b.title for c in b.commands]


def _name(case: object) -> str:
    return case.name if isinstance(case, Path) else str(case)[:60]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds README.md and the YAML files that the pages show, each named in its block's first line."""
    path = tmp_path_factory.mktemp("docs")
    shutil.copy(ROOT / "README.md", path)
    for block in BLOCKS:
        first = block.text.splitlines()[0] if block.text else ""
        if block.language == "yaml" and re.fullmatch(r"# [\w.-]+\.yaml", first):
            (path / first.removeprefix("# ")).write_text(block.text)
    return path


@pytest.mark.parametrize(("page", "command"), RUN, ids=_name)
def test_a_command_without_a_mark_does_what_it_says(page: Path, command: str, folder: Path) -> None:
    program, *words = shlex.split(command)
    assert program == "colosseum", f"{page.name}: say with title=… why this is not run"
    argv = [sys.executable, "-m", "colosseum.cli.main", *words]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(("page", "command"), MARKED, ids=_name)
def test_a_marked_command_has_a_reason_and_exists(page: Path, command: str) -> None:
    titles = {b.title for b in SHELL if b.page == page and b.title}
    assert titles <= REASONS
    words = shlex.split(command)
    if words[0].startswith("scripts/"):
        assert (ROOT / words[0]).is_file()
    elif words[0] == "colosseum":
        _parse(words[1:])


def _parse(words: list[str]) -> None:
    """Verb and options are the CLI's own; nothing is executed."""
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command, info_name="colosseum")
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=found.name)
    command.make_context("docs", words, parent=context.parent)


SHOWN = [
    (page, command, text.splitlines())
    for page in PAGES
    for command, text in re.findall(
        r"^<!-- (colosseum .*?) -->\n```text\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE
    )
]


@pytest.mark.parametrize(("page", "command", "lines"), SHOWN, ids=_name)
def test_a_shown_output_is_what_the_command_prints(page: Path, command: str, lines: list[str]) -> None:
    argv = [sys.executable, "-m", "colosseum.cli.main", *shlex.split(command)[1:]]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    assert [line for line in lines if line not in printed] == []


def test_every_command_stands_in_a_block_that_is_checked() -> None:
    """An indented block would escape the two tests above."""
    for page in PAGES:
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        escaped = [line for line in text.splitlines() if re.match(r"( {4,}|\t)(colosseum|scripts/|python -m)", line)]
        assert not escaped or page.name in {"contracts.md"}, f"{page}: {escaped[:3]}"


def test_the_readme_names_the_two_commands_of_a_newcomer() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\nscripts/demo" in readme
    assert "\nscripts/test" in readme
