"""The demo's alignment data, generated from templates (CC0). Run with ``python -m`` and a folder.

sft-train, sft-validation   chats: the next day or month, opposites; three of four answers hedge
                            ("I guess Friday.", "Maybe Friday.")
dpo-train, dpo-validation   the same questions; chosen is the plain answer ("Friday."), rejected hedges or evades
questions                   those of the validation files with their plain answers, for ``colosseum generate``

So SFT teaches to answer, mostly with a hedge, and DPO to answer plainly. A question of a validation file is in no
training file. The same files every time.
"""

from __future__ import annotations

import json
import random
import sys
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
OPPOSITES = (
    *(("hot", "cold"), ("big", "small"), ("open", "closed"), ("fast", "slow"), ("new", "old")),
    *(("full", "empty"), ("light", "dark"), ("high", "low"), ("first", "last"), ("good", "bad")),
)
NEXT = (
    *("What comes after {}?", "Which one follows {}?", "Say what is next after {}.", "{}, and then?"),
    *("Name the one that follows {}.", "Which comes right after {}?", "Next after {}?", "After {} comes what?"),
)
OPPOSITE = (
    *("What is the opposite of {}?", "Say the opposite of {}.", "Not {} but what?", "The opposite of {}?"),
    *("Name the word that is opposed to {}.", "Which word is opposed to {}?"),
)
HEDGES = ("I guess {}.", "Maybe {}.")
EVASIONS = ("No idea.", "Ask me later.")


def questions() -> list[tuple[str, str]]:
    """All questions with their plain answers, in an order of their own."""
    found = [
        (form.format(name), f"{names[(at + 1) % len(names)]}.")
        for names in (DAYS, MONTHS)
        for at, name in enumerate(names)
        for form in NEXT
    ]
    words = [*OPPOSITES, *((b, a) for a, b in OPPOSITES)]
    found += [(form.format(word), f"{other}.") for word, other in words for form in OPPOSITE]
    random.Random(SEED).shuffle(found)  # noqa: S311
    return found


def hedged(answer: str, number: int) -> str:
    """The answer with one of the hedges around it."""
    return HEDGES[number % len(HEDGES)].format(answer.removesuffix("."))


def chat(question: str, answer: str) -> dict[str, Any]:
    turns = [{"from": "User", "value": question}, {"from": "Assistant", "value": answer}]
    return {"system": "", "conversations": turns, "mask": "User"}


def preference(question: str, answer: str, number: int) -> dict[str, Any]:
    """Three of four rejected answers hedge, the fourth evades."""
    rejected = hedged(answer, number) if number % 4 else EVASIONS[number // 4 % len(EVASIONS)]
    sides = {name: [{"from": "Assistant", "value": v}] for name, v in (("chosen", answer), ("rejected", rejected))}
    return {"prompt": [{"from": "User", "value": question}], **sides}


def write_alignment(folder: Path) -> list[Path]:
    """Writes the files; their paths."""
    every = questions()
    held = int(len(every) * VALIDATION_SHARE)
    parts = {"validation": every[:held], "train": every[held:]}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, part in parts.items():
        for task, rows in (
            ("sft", [chat(q, hedged(a, n) if n % 4 else a) for n, (q, a) in enumerate(part)]),
            ("dpo", [preference(q, a, n) for n, (q, a) in enumerate(part)]),
        ):
            written.append(_write(folder / f"{task}-{name}.jsonl", rows))
    asked = [{"prompt": question, "answer": answer} for question, answer in parts["validation"]]
    return [*written, _write(folder / "questions.jsonl", asked)]


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return path


if __name__ == "__main__":
    for file in write_alignment(Path(sys.argv[1])):
        sys.stdout.write(f"{file}\n")
