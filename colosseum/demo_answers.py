"""The last page of scripts/demo --all: ``python -m colosseum.demo_answers FOLDER STAGE=ANSWERS.jsonl…``.

Answers of the same held-out questions before and after SFT and DPO, and whether the exported folder loads in
transformers. Exit 4 if SFT taught no answers or DPO did not remove the hedges.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from colosseum.data.demo_alignment import HEDGES
from colosseum.errors import ColosseumError, RunFailed

SHOWN = 6
Rows = Sequence[Mapping[str, Any]]
"""Of one stage: prompt, answer (the expected one), generated."""


def main(folder: str, *words: str) -> int:
    """Prints the page; the exit code."""
    console = Console(highlight=False)
    stages = {name: _read(Path(file)) for name, file in (word.split("=", 1) for word in words)}
    try:
        _show(console, stages)
        _load(console, Path(folder), next(reversed(stages.values())))
        _judge(stages)
    except ColosseumError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _read(file: Path) -> Rows:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def plain_share(rows: Rows) -> float:
    """Of answers that are the expected one to the letter."""
    return sum(bool(row["generated"] == row["answer"]) for row in rows) / len(rows)


def right_share(rows: Rows) -> float:
    """Of answers that hold the expected word, hedged or not."""
    return sum(bool(row["answer"].removesuffix(".") in row["generated"]) for row in rows) / len(rows)


def hedged_share(rows: Rows) -> float:
    """Of answers that begin with one of the hedges."""
    starts = tuple(form.partition("{}")[0] for form in HEDGES)
    return sum(bool(row["generated"].startswith(starts)) for row in rows) / len(rows)


def _show(console: Console, stages: Mapping[str, Rows]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), title="Questions that no stage was trained on", title_justify="left")
    table.add_column("question", overflow="fold")
    for name in stages:
        table.add_column(f"after {name}", overflow="fold", max_width=30)
    first = next(iter(stages.values()))
    for number, row in enumerate(first[:SHOWN]):
        answers = (rows[number]["generated"] for rows in stages.values())
        table.add_row(row["prompt"], *(" ".join(answer.split()) for answer in answers))
    table.add_section()
    for name, share in (("right", right_share), ("hedged", hedged_share), ("right and not hedged", plain_share)):
        table.add_row(f"{name}, of {len(first)}", *(f"{share(rows):.0%}" for rows in stages.values()))
    console.print()
    console.print(table)


def _load(console: Console, folder: Path, rows: Rows) -> None:
    """The exported folder in transformers, where that is installed: it must answer as `colosseum generate` did."""
    if find_spec("transformers") is None:
        console.print(f"\n{folder}: not loaded in transformers, which is not installed (pip install transformers)")
        return
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    messages = [{"role": "user", "content": rows[0]["prompt"]}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = model.generate(**asked, max_new_tokens=rows[0]["tokens"] + 1, do_sample=False)
    answer = tokenizer.decode(tokens[0, asked["input_ids"].size(1) :])
    console.print(f"\n{folder} in transformers: {rows[0]['prompt']} {answer.strip()}", soft_wrap=True)
    if not answer.startswith(rows[0]["generated"]):
        raise RunFailed(f"transformers answers {answer!r}, colosseum generate {rows[0]['generated']!r}")


def _judge(stages: Mapping[str, Rows]) -> None:
    before, taught, aligned = stages.values()
    if not right_share(taught) > right_share(before) + 0.3:
        raise RunFailed(f"SFT had no effect: {right_share(taught):.0%} right, {right_share(before):.0%} before")
    if not hedged_share(aligned) < hedged_share(taught) - 0.3:
        raise RunFailed(f"DPO had no effect: {hedged_share(aligned):.0%} hedged, {hedged_share(taught):.0%} before")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
