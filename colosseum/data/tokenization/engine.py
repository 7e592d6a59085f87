"""The fast engine, ``gigatoken``, and the check that it gives the ids of the tokenizer's own library.

It is compared on every special token, on texts that are hard to split, and on an excerpt of every MiB of the corpus.
The first difference ends its use: the whole corpus is then encoded by the library.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colosseum.data.tokenization.encoders import Encode, TokenizerFile, library_name, reference
from colosseum.data.tokenizer import refusing
from colosseum.errors import INSTALL_DATA, RefusedInput

EXCERPT_CHARACTERS = 2048
"""Compared of every batch: at a fortieth of the speed, a fifteenth of the time."""
HARD = (
    *("", " ", "  a  b   ", "\n\n\n", "\r\n\t \r", "a\u00a0b\u3000c", "\u2028\u2029", "\x00\x01\x7f", "\ufeffa"),
    *("it's I'LL don\u2019t 'S", "1234567890 3.14159 1,000,000", "x" * 300, "=" * 200, "ab" * 150),
    *("Straße ΑΒΓ ǆ İıſ ﬁ", "e\u0301 \u0301x क्षि ประเทศไทย", "人人生而自由，在尊嚴和權利上", "한국어 אבגד العربية"),
    *(
        "👩\u200d👩\u200d👧 🇩🇪🏳\ufe0f\u200d🌈",
        "\U0010ffff\ue000\ufffd",
        "def f(x):\n\treturn x**2  # ²½\n",
        "<s></s><unk><0x0A>▁▁a",
    ),
)


class EngineDiffers(Exception):
    """The fast engine gave other ids than the tokenizer's library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Ids of several documents, one after another."""

    ids: npt.NDArray[np.integer]
    lengths: npt.NDArray[np.int64]


class Fast:
    """``gigatoken`` beside the library that it is compared with."""

    def __init__(self, tokenizer: TokenizerFile) -> None:
        """Raises RefusedInput: it cannot read this tokenizer. ImportError: it is not installed."""
        self._library = reference(tokenizer)
        self._fast = _gigatoken(tokenizer)
        self._batches = 0

    def encode(self, texts: Sequence[bytes]) -> Tokens:
        """Ids of the texts; an excerpt is compared.

        Raises:
            EngineDiffers: on the excerpt.
        """
        self._batches += 1
        text = texts[self._batches * 7 % len(texts)].decode()
        start = self._batches * 7919 % max(1, len(text) - EXCERPT_CHARACTERS + 1)
        self.compare([text[start : start + EXCERPT_CHARACTERS]])
        return self._encode(texts)

    def compare(self, texts: Sequence[str]) -> None:
        """Raises EngineDiffers: the two give different ids for one of the texts."""
        data = [text.encode() for text in texts]
        tokens, at = self._encode(data), 0
        for text, right, length in zip(texts, self._library(data), tokens.lengths.tolist(), strict=True):
            if tokens.ids[at : at + length].tolist() != right:
                raise EngineDiffers(f"other ids than {right[:8]}… for {text[:60]!r}")
            at += length

    def _encode(self, texts: Sequence[bytes]) -> Tokens:
        # Not parallel: there is one process per core, and its threads would fill the machine again.
        try:
            with refusing("gigatoken"):
                layout = self._fast.encode_batch(list(texts), parallel=False).layout
        except RefusedInput as error:
            raise EngineDiffers(f"no ids but an error: {error}") from error
        offsets = np.asarray(layout.offsets)
        return Tokens(ids=np.asarray(layout.content.data)[offsets[0] : offsets[-1]], lengths=np.diff(offsets))


class Slow:
    """The tokenizer's own library."""

    def __init__(self, tokenizer: TokenizerFile) -> None:
        self._library: Encode = reference(tokenizer)

    def encode(self, texts: Sequence[bytes]) -> Tokens:
        """Ids of the texts."""
        with refusing("the tokenizer cannot encode this text"):
            rows = self._library(texts)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = (i for row in rows for i in row)
        return Tokens(ids=np.fromiter(flat, np.int64, int(lengths.sum())), lengths=lengths)


def usable(tokenizer: TokenizerFile) -> str:
    """Why the fast engine cannot encode with this tokenizer; empty = it can, and all that is checked first agrees."""
    try:
        fast = Fast(tokenizer)
        special = [text for s in tokenizer.special for text in (s, f"a{s}b", f" {s} {s}\n")]
        fast.compare([*HARD, *special])
    except ImportError:
        return f"gigatoken is not installed: {INSTALL_DATA}"
    except RefusedInput as error:
        return f"gigatoken cannot read it: {error}"
    except EngineDiffers as error:
        return f"gigatoken gives {error}"
    return ""


def version(engine: str, tokenizer: TokenizerFile) -> str:
    """Name and version of the package that encoded."""
    package = "gigatoken" if engine == "fast" else library_name(tokenizer.kind)
    return f"{package} {importlib.metadata.version(package)}"


def _gigatoken(tokenizer: TokenizerFile) -> Any:
    import gigatoken

    with refusing(f"{tokenizer.path}"):
        if tokenizer.kind == "tiktoken":
            # Without special tokens: what looks like one inside a document is text.
            return gigatoken.Tokenizer.from_tiktoken(str(tokenizer.path), special_tokens={})
        data = tokenizer.path.read_bytes()
        if tokenizer.kind == "sentencepiece":
            # Its own translation of the model into a tokenizer.json; a release without it is not used.
            content = json.loads(gigatoken.Tokenizer.from_sentencepiece(data)._hf_json)
        else:
            content = json.loads(data)
        content["added_tokens"] = [t for t in content.get("added_tokens") or () if not t["special"]]
        content |= {"truncation": None, "padding": None, "post_processor": None}
        return gigatoken.Tokenizer.from_json(json.dumps(content))
