"""Shipped texts (messages, help, comments, docs, recipes) avoid phrases that CONTRIBUTING.md's glossary replaced."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHIPPED = ("README.md", "colosseum", "conf", "docker", "docs", "recipes", "scripts")
OLD = re.compile(
    r"\b(le(?:ft|aves) no word|not its business|each with each|(?:begins?|began) anew|shakedown drill|amiss|at hand"
    r"|(?:nats|TFLOP/s|tokens/s) an? \w+|(?:MFU|GiB|TB|NIC|GPUs) a (?:GPU|node|rank|rack|replica)"
    r"|goes on where it (?:stood|was)"
    r"|(?<!there )is no (?:finished checkpoint|tokenizer\.json|Megatron index|sound bundle)"
    r"|holds no (?:finished checkpoint|checksums?|row)|mend the (?:data|recipe|cause)|put your own|taught to chat)\b"
)


def old_phrases(text: str) -> list[str]:
    return [found.group() for found in OLD.finditer(" ".join(text.split()))]


def test_shipped_texts_use_the_glossary() -> None:
    listed = subprocess.run(["git", "ls-files", "--", *SHIPPED], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = (ROOT / name for name in listed.stdout.splitlines() if not name.endswith((".png", ".jsonl")))
    assert {str(path): found for path in texts if (found := old_phrases(path.read_text()))} == {}


def test_old_phrases_are_found() -> None:
    assert old_phrases("rank 1 left no\n  word; 4.4 nats a token") == ["left no word", "nats a token"]
    assert old_phrases("needs a GPU; there is no tokenizer.json") == []
