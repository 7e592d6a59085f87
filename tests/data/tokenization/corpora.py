"""Small corpora and tokenizers, and what the tokenizers' own libraries and megatron-core make of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colosseum.data.indexed import bin_path, idx_path
from colosseum.data.tokenization.corpus import Corpus, Finished, tokenize_corpus
from colosseum.data.tokenization.encoders import find_tokenizer
from colosseum.data.tokenization.sources import find_sources
from colosseum.data.tokenizer import train_tokenizer

EOD = "<|endoftext|>"
TEXTS = [
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "def f(x):\n\treturn x\n",
    "人人生而自由",
    "\u2028 line separator, \x00 zero, 🦀",
    f"{EOD} written in a text ends nothing",
    "x" * 300,
]
MANY = [f"{text} {n}" for n in range(40) for text in TEXTS]


def tokenizer_json(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    train_tokenizer(TEXTS * 3, path, vocab_size=300, eod=EOD)
    return path


def jsonl(path: Path, texts: Sequence[str], key: str = "text") -> Path:
    path.write_text("".join(json.dumps({key: t}, ensure_ascii=False) + "\n" for t in texts), encoding="utf-8")
    return path


def corpus(inputs: Sequence[Path | str], prefix: Path, tokenizer: Path, *, eod: str = EOD, **options: Any) -> Corpus:
    sources = find_sources([str(i) for i in inputs])
    return Corpus(sources=sources, prefix=prefix, tokenizer=find_tokenizer(tokenizer, eod), **options)


def tokenized(inputs: Sequence[Path | str], prefix: Path, tokenizer: Path, **options: Any) -> Finished:
    """In this process."""
    return tokenize_corpus(corpus(inputs, prefix, tokenizer, **options), processes=1)


def both(prefix: Path) -> tuple[bytes, bytes]:
    return bin_path(prefix).read_bytes(), idx_path(prefix).read_bytes()


def all_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def by_megatron(prefix: Path, documents: Sequence[Sequence[int]], vocab_size: int) -> tuple[bytes, bytes]:
    """The pair that megatron-core's own builder writes of these ids."""
    import torch
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(bin_path(prefix)), dtype=DType.optimal_dtype(vocab_size))
    for ids in documents:
        builder.add_document(torch.tensor(ids, dtype=torch.int64), [len(ids)])
    builder.finalize(str(idx_path(prefix)))
    return both(prefix)
