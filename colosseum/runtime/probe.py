"""What the model is about to see: the first samples as text, what of them counts, and each source's share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from colosseum.data.tokenizer import load_tokenizer
from colosseum.recipe.schema import Recipe
from colosseum.runtime.tasks.base import Samples

SHOWN_SAMPLES = 3
SHOWN_CHARACTERS = 240
SHARES_OF = 10_000
"""Samples whose sources are counted."""


def probe(recipe: Recipe, samples: Samples, first: int) -> dict[str, Any]:
    """The next training samples from ``first`` on: a row for events.jsonl.

    Returns:
        ``samples``: source, the text (ids if there is no tokenizer.json), tokens, and how many of them the
        loss does not count; ``shares``: of tokens by source over the next samples.
    """
    decode = _decoder(recipe)
    rows = []
    for index in range(first, min(first + SHOWN_SAMPLES, len(samples))):
        sample = samples.shown(index)
        text = decode(sample.ids[:SHOWN_CHARACTERS])[:SHOWN_CHARACTERS]
        row = {"sample": index, "source": sample.source, "text": text}
        rows.append({**row, "tokens": len(sample.ids), "masked": sample.masked})
    tokens = samples.tokens_by_source(first, min(first + SHARES_OF, len(samples)))
    total = max(1, sum(tokens.values()))
    return {"samples": rows, "shares": {source: round(n / total, 4) for source, n in tokens.items()}}


def _decoder(recipe: Recipe) -> Any:
    if recipe.tokenizer.kind != "tokenizer_json" or recipe.tokenizer.path is None:
        return lambda ids: " ".join(map(str, ids))
    library = load_tokenizer(Path(recipe.tokenizer.path), recipe.tokenizer.eod).library
    return lambda ids: library.decode(ids, skip_special_tokens=False)
