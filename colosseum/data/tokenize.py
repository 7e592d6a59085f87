"""Text documents to a Megatron .bin/.idx pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from colosseum.data.documents import Document
from colosseum.data.indexed import MAX_DOCUMENT_TOKENS, write_dataset
from colosseum.data.tokenizer import TextTokenizer
from colosseum.errors import Fault, RefusedInput

BATCH_CHARACTERS = 2**20
"""Characters encoded at once: enough to keep all cores busy, small compared with memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """Counts of what was written."""

    documents: int
    tokens: int
    """End-of-document tokens included."""
    empty: int
    """Documents without text, skipped."""
    characters: int


def tokenize_documents(
    documents: Iterable[Document],
    prefix: Path,
    tokenizer: TextTokenizer,
    *,
    force: bool = False,
    on_progress: Callable[[int, int], None] = lambda documents, tokens: None,
) -> Tokenized:
    """Writes each document's ids and an end-of-document id to ``prefix``.bin and .idx, both complete or neither.

    Raises:
        RefusedInput: no document has text, the output exists, or a document is unreadable (from ``documents``).
        EnvironmentFault: the output cannot be written.
    """
    empty = characters = 0
    with write_dataset(prefix, tokenizer.vocab_size, force=force) as writer:
        for batch in _batches(documents):
            for document, ids in zip(batch, tokenizer.encode_documents([d.text for d in batch]), strict=True):
                if len(ids) > MAX_DOCUMENT_TOKENS:
                    rule = "a document of 2^31 tokens or more does not fit the format; split it"
                    raise RefusedInput([Fault(path="", value=None, rule=rule, where=document.where)])
                if ids:
                    writer.add_document(ids)
                    characters += len(document.text)
                else:
                    empty += 1
            on_progress(writer.documents, writer.tokens)
        if not writer.documents:
            raise RefusedInput("the input has no document with text")
    return Tokenized(documents=writer.documents, tokens=writer.tokens, empty=empty, characters=characters)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text) + 1
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
