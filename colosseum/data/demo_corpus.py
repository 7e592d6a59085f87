"""The demo's corpus: real text from this package or from every Python. Run with ``python -m`` and a folder.

languages  the Universal Declaration of Human Rights in 41 languages (colosseum/data/corpus/README.md)
english    Python's language reference, from ``pydoc_data`` (PSF licence)
code       a part of Python's standard library (PSF licence)
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

from colosseum.atomic import write_whole

CODE_FOLDERS = ("asyncio", "collections", "concurrent", "html", "http", "importlib", "json", "logging", "urllib")
PARAGRAPHS_A_DOCUMENT = 20


def languages() -> Iterator[str]:
    """Articles of the declaration, alternating between languages."""
    with resources.files("colosseum.data").joinpath("corpus/udhr.jsonl").open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def english() -> Iterator[str]:
    """The topics of Python's reference, long ones split."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        paragraphs = topics[name].split("\n\n")
        for start in range(0, len(paragraphs), PARAGRAPHS_A_DOCUMENT):
            yield "\n\n".join(paragraphs[start : start + PARAGRAPHS_A_DOCUMENT]) + "\n"


def code() -> Iterator[str]:
    """Modules of the standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for folder in CODE_FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if text := path.read_text(encoding="utf-8"):
                yield text


def write_corpus(folder: Path) -> list[Path]:
    """Writes languages.jsonl, english.jsonl and code.jsonl; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, texts in (("languages", languages()), ("english", english()), ("code", code())):
        path = folder / f"{name}.jsonl"
        write_whole(path, "".join(_lines(texts)).encode())
        written.append(path)
    return written


def _lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield json.dumps({"text": text}, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file in write_corpus(Path(sys.argv[1])):
        sys.stdout.write(f"{file}\n")
