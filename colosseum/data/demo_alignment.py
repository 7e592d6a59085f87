"""The demo's alignment data, generated from templates (CC0). Run with ``python -m`` and a folder.

sft-train, sft-validation   chats: days and months, small sums, the larger of two digits, counting, brackets
dpo-train, dpo-validation   the same questions; chosen is the plain response, rejected an evasive one

Questions of validation files are not in training files. The output is always the same.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from colosseum.atomic import write_whole

SEED = 1234
VALIDATION_SHARE = 0.15
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "brown", "grey", "pink", "orange")
AFTER = ("What comes after {}?", "Which one follows {}?", "Say what is next after {}.")
BEFORE = ("What comes before {}?", "Which one is just before {}?")
SUM = ("What is {} plus {}?", "Add {} and {}.", "{} + {} = ?")
LARGER = ("Which is larger, {} or {}?", "Give the larger of {} and {}.")
COUNT = ("Count from {} to {}.", "Write the numbers from {} to {}.")
BRACKETS = ("Put brackets around {}.", "Write {} in brackets.", "Show {} between brackets.")
EVASIONS = ("No idea.", "Ask me later.", "I would rather not say.")
HEDGES = ("Well, it could be {}, or perhaps not, who knows?", "Hmm, let me think about it: maybe {}, I guess.")


def questions() -> list[tuple[str, str]]:
    """All questions with their answers, in a fixed random order."""
    found = [*_neighbours(), *_numbers()]
    found += [(form.format(c), f"[{c}]") for form in BRACKETS for c in COLOURS]
    random.Random(SEED).shuffle(found)  # noqa: S311
    return found


def _neighbours() -> Iterator[tuple[str, str]]:
    for names in (DAYS, MONTHS):
        for at, name in enumerate(names):
            following = names[(at + 1) % len(names)]
            yield from ((form.format(name), f"{following}.") for form in AFTER)
            yield from ((form.format(following), f"{name}.") for form in BEFORE)


def _numbers() -> Iterator[tuple[str, str]]:
    for a in range(10):
        for b in range(10):
            if a + b < 10:
                yield from ((form.format(a, b), f"{a + b}.") for form in SUM)
            if a != b:
                yield from ((form.format(a, b), f"{max(a, b)}.") for form in LARGER)
            if a < b:
                numbers = ", ".join(map(str, range(a, b + 1)))
                yield from ((form.format(a, b), f"{numbers}.") for form in COUNT)


def chat(question: str, answer: str) -> dict[str, Any]:
    turns = [{"from": "User", "value": question}, {"from": "Assistant", "value": answer}]
    return {"system": "", "conversations": turns, "mask": "User"}


def preference(question: str, answer: str, number: int) -> dict[str, Any]:
    """Half of the rejected responses are shorter than the chosen one or of similar length, half are longer."""
    kinds = EVASIONS if number % 2 else HEDGES
    rejected = kinds[number // 2 % len(kinds)].format(answer.removesuffix("."))
    sides = {name: [{"from": "Assistant", "value": v}] for name, v in (("chosen", answer), ("rejected", rejected))}
    return {"prompt": [{"from": "User", "value": question}], **sides}


def write_alignment(folder: Path) -> list[Path]:
    """Writes the four files; returns their paths."""
    every = questions()
    held = int(len(every) * VALIDATION_SHARE)
    parts = {"validation": every[:held], "train": every[held:]}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, part in parts.items():
        for task, rows in (
            ("sft", [chat(q, a) for q, a in part]),
            ("dpo", [preference(q, a, n) for n, (q, a) in enumerate(part)]),
        ):
            path = folder / f"{task}-{name}.jsonl"
            write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
            written.append(path)
    return written


if __name__ == "__main__":
    for file in write_alignment(Path(sys.argv[1])):
        sys.stdout.write(f"{file}\n")
