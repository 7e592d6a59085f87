"""What the model is about to see: the first samples as text, what of them counts, and each source's share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from colosseum.data.tokenizer import load_tokenizer
from colosseum.recipe.schema import Recipe
from colosseum.runtime.data import Samples

SHOWN_SAMPLES = 3
SHOWN_CHARACTERS = 240
SHARES_OF = 10_000
"""Samples whose sources are counted."""


def probe(recipe: Recipe, samples: Samples, first: int) -> dict[str, Any]:
    """The samples that training goes on with at ``first``: a row for events.jsonl.

    Returns:
        ``samples``: source, the text (ids where the tokenizer is no tokenizer.json), tokens, and how many of them the
        loss does not count; ``shares``: of tokens by source over the next samples.
    """
    last = min(first + SHOWN_SAMPLES, len(samples.source_of))
    rows = []
    decode = _decoder(recipe)
    for index in range(first, last):
        sample = samples[index]
        rows.append(
            {
                "sample": index,
                "source": samples.sources[int(samples.source_of[index])].prefix,
                "text": decode([int(token) for token in sample["tokens"][:SHOWN_CHARACTERS]])[:SHOWN_CHARACTERS],
                "tokens": int(sample["tokens"].numel()),
                "masked": int((sample["loss_mask"] == 0).sum()),
            }
        )
    counts = np.bincount(samples.source_of[first : first + SHARES_OF], minlength=len(samples.sources))
    total = max(1, int(counts.sum()))
    shares = {source.prefix: round(int(n) / total, 4) for source, n in zip(samples.sources, counts, strict=True)}
    return {"samples": rows, "shares": shares}


def _decoder(recipe: Recipe) -> Any:
    if recipe.tokenizer.kind != "tokenizer_json" or recipe.tokenizer.path is None:
        return lambda ids: " ".join(map(str, ids))
    library = load_tokenizer(Path(recipe.tokenizer.path), recipe.tokenizer.eod).library
    return lambda ids: library.decode(ids, skip_special_tokens=False)
