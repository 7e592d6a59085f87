"""Tokenizers of all supported files: tokenizer.json, SentencePiece, tiktoken, or a folder that has one of them.

The libraries that the formats come from define the ids (`reference`); `engine.py` has the faster way to the same ids.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from colosseum.data.eod import MAX_BYTES, eod_id, read_json, read_sentencepiece
from colosseum.data.tokenizer import load_tokenizer, refusing
from colosseum.errors import INSTALL_DATA, EnvironmentFault, Fault, RefusedInput

Kind = Literal["tokenizer_json", "sentencepiece", "tiktoken"]
Encode = Callable[[Sequence[bytes]], list[list[int]]]
"""Ids of each UTF-8 text, without any special token."""
_NAMES = ("tokenizer.json", "tokenizer.model", "*.tiktoken", "*.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFile:
    """A tokenizer on disk, with what the corpus needs to know of it."""

    path: Path
    kind: Kind
    sha256: str
    vocab_size: int
    """Largest id + 1."""
    eod: str
    eod_id: int
    special: tuple[str, ...]
    """Tokens that text never encodes to."""


def find_tokenizer(given: Path, eod: str) -> TokenizerFile:
    """The tokenizer file at ``given``, or in that Hugging Face folder.

    Raises:
        RefusedInput: there is none, it is damaged, or ``eod`` is not one of its special tokens.
        EnvironmentFault: the library of its format is missing.
    """
    path = _in_folder(given) if given.is_dir() else given
    kind = _kind(path)
    if kind == "tiktoken":
        ranks, special = tiktoken_parts(path)
        if eod not in special:
            near = tuple(get_close_matches(eod, special, n=3, cutoff=0.3)) or tuple(special)[:5]
            rule = f"{path.stem} has no such special token"
            raise RefusedInput([Fault(path="tokenizer.eod", value=eod, rule=rule, nearest=near)])
        size, end = max((*ranks.values(), *special.values())) + 1, special[eod]
        names = tuple(special)
    else:
        size, end = eod_id(kind, path, eod)
        names = tuple((read_json(path) if kind == "tokenizer_json" else read_sentencepiece(path)).special)
    return TokenizerFile(
        path=path,
        kind=kind,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        vocab_size=size,
        eod=eod,
        eod_id=end,
        special=names,
    )


def reference(tokenizer: TokenizerFile) -> Encode:
    """The encoder of the library that the format comes from.

    Raises:
        EnvironmentFault: it is missing.
        RefusedInput: it cannot read the file.
    """
    if tokenizer.kind == "tokenizer_json":
        library = load_tokenizer(tokenizer.path, tokenizer.eod).library
        return lambda texts: [
            e.ids for e in library.encode_batch_fast([t.decode() for t in texts], add_special_tokens=False)
        ]
    if tokenizer.kind == "sentencepiece":
        model = _sentencepiece(tokenizer.path)
        return lambda texts: model.encode([t.decode() for t in texts], num_threads=1)
    encoding = _tiktoken(tokenizer.path)
    return lambda texts: [encoding.encode_ordinary(t.decode()) for t in texts]


def library_name(kind: Kind) -> str:
    """Package of the reference encoder."""
    return {"tokenizer_json": "tokenizers"}.get(kind, kind)


def tiktoken_parts(path: Path) -> tuple[dict[bytes, int], dict[str, int]]:
    """Ranks of a .tiktoken file, and the special tokens that OpenAI's encoding of its name has.

    Raises:
        RefusedInput: it is not such a file, or no encoding of OpenAI has its name.
    """
    definition = _tiktoken_definition(path)
    return definition["mergeable_ranks"], definition["special_tokens"]


def _in_folder(folder: Path) -> Path:
    for pattern in _NAMES:
        if found := sorted(folder.glob(pattern)):
            return found[0]
    raise RefusedInput(f"{folder} has no tokenizer: none of {', '.join(_NAMES)}")


def _kind(path: Path) -> Kind:
    if path.suffix == ".tiktoken":
        return "tiktoken"
    return "sentencepiece" if path.suffix == ".model" else "tokenizer_json"


def _sentencepiece(path: Path) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise EnvironmentFault(f"SentencePiece models need the sentencepiece library: {INSTALL_DATA}") from error
    with refusing(f"{path} is not a SentencePiece model"):
        return sentencepiece.SentencePieceProcessor(model_file=os.fspath(path))


def _tiktoken(path: Path) -> Any:
    import tiktoken

    with refusing(f"{path} is not a tiktoken file"):
        return tiktoken.Encoding(**_tiktoken_definition(path))


def _tiktoken_definition(path: Path) -> dict[str, Any]:
    """The arguments of ``tiktoken.Encoding``. A .tiktoken file holds ranks only: the rest is known by its name."""
    try:
        from tiktoken_ext import openai_public
    except ImportError as error:
        raise EnvironmentFault(f".tiktoken files need the tiktoken library: {INSTALL_DATA}") from error
    known = [name for name in openai_public.ENCODING_CONSTRUCTORS if name not in ("gpt2", "p50k_edit")]
    if path.stem not in known:
        rule = "a .tiktoken file has no pattern and no special tokens: its name must be one of OpenAI's encodings"
        raise RefusedInput([Fault(path="tokenizer", value=str(path), rule=rule, nearest=tuple(known))])
    ranks = _ranks(path)
    # The constructors download their ranks; here these come from the user's file.
    download = openai_public.load_tiktoken_bpe
    openai_public.load_tiktoken_bpe = lambda *args, **options: ranks
    try:
        definition: dict[str, Any] = openai_public.ENCODING_CONSTRUCTORS[path.stem]()
    finally:
        openai_public.load_tiktoken_bpe = download
    definition.pop("explicit_n_vocab", None)
    return definition


def _ranks(path: Path) -> dict[bytes, int]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RefusedInput(f"{path} is not a tokenizer: it has more than {MAX_BYTES >> 20} MiB")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RefusedInput(f"the tokenizer file {path} cannot be read: {error.strerror}") from error
    try:
        return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    except ValueError as error:
        raise RefusedInput(f"{path} is not a tiktoken file: a line is not a base64 token and its rank") from error
