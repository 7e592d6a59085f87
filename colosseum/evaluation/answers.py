"""The model's answers so far, one line each, so that an evaluation that was killed continues.

Every line is written at once and a truncated last line is dropped. The file belongs to one folder of one checkpoint
with one set of settings; the key of an answer is the hash of its request.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from colosseum.records import parse_object


def keys_of(kind: str, requests: Sequence[Sequence[Any]]) -> list[str]:
    """A key for each request; equal requests (repeats of a sampled answer) are numbered."""
    seen: Counter[str] = Counter()
    found = []
    for arguments in requests:
        text = json.dumps([kind, *arguments], sort_keys=True, default=str)
        found.append(hashlib.sha256(f"{seen[text]} {text}".encode()).hexdigest())
        seen[text] += 1
    return found


class Answers:
    """Answers by the key of their request."""

    def __init__(self, found: dict[str, Any], file: BinaryIO) -> None:
        self.found = found
        self._file = file

    def add(self, new: Mapping[str, Any]) -> None:
        """On disk when it returns."""
        lines = [json.dumps({"key": key, "answer": answer}) + "\n" for key, answer in new.items()]
        self._file.write("".join(lines).encode())
        self._file.flush()
        self.found.update(new)


@contextmanager
def kept(path: Path) -> Iterator[Answers]:
    """The answers in a file, to which more are added."""
    whole = b""
    if path.exists():
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
    rows = [row for line in whole.splitlines() if (row := parse_object(line)) is not None]
    with path.open("ab") as file:
        file.truncate(len(whole))
        yield Answers({str(row["key"]): row["answer"] for row in rows if "key" in row and "answer" in row}, file)
