"""The small files of an exported model: tokenizer, chat template, generation config."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colosseum.checkpoint.hf.origin import Origin
from colosseum.checkpoint.hf.source import GENERATION, TOKENIZER_FILES, as_ids
from colosseum.data.eod import TokenFile, eod_id, read_json, read_sentencepiece
from colosseum.errors import Fault, RefusedInput
from colosseum.reading import Unreadable, read_object
from colosseum.recipe.schema import Tokenizer
from colosseum.recipe.tasks import ChatTokens

TEMPLATE = "chat_template.jinja"
NAMES = {"tokenizer_json": "tokenizer.json", "sentencepiece": "tokenizer.model"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Token ids at the beginning and end of a text, and notes on what the folder lacks."""

    bos: int | None
    eos: tuple[int, ...]
    generation: dict[str, Any]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, origin: Origin) -> Chat:
        """Reads the tokenizer's files.

        Raises:
            RefusedInput: the tokenizer file is missing, or lacks the end-of-document token.
        """
        tokenizer = origin.tokenizer
        if tokenizer is None:
            note = "the run has no tokenizer: the folder contains weights and config only"
            return cls(bos=None, eos=(), generation={}, notes=(note,))
        path = Path(str(tokenizer.path))
        if not path.is_file():
            rule = "does not exist on this machine; it is needed for the exported model"
            raise RefusedInput([Fault(path="tokenizer.path", value=str(path), rule=rule)])
        _, eod = eod_id(tokenizer.kind, path, tokenizer.eod)
        generation = _object(path.parent / GENERATION)
        eos = [*as_ids(generation.get("eos_token_id")), eod]
        notes = []
        if origin.chat_tokens is not None:
            stop = _id_of(_token_file(tokenizer, path), origin.chat_tokens.turn_start)
            if stop is None:
                notes.append(
                    f"{origin.chat_tokens.turn_start!r} is not a single token: set it as a stop string of the server"
                )
            else:
                eos.append(stop)
        bos = as_ids(generation.get("bos_token_id"))
        unique = tuple(dict.fromkeys(eos))
        generation = {**generation, "eos_token_id": list(unique)}
        return cls(bos=bos[0] if bos else None, eos=unique, generation=generation, notes=tuple(notes))


def write(folder: Path, origin: Origin, chat: Chat) -> None:
    """Copies the tokenizer's files and writes the others."""
    if origin.tokenizer is None:
        return
    path = Path(str(origin.tokenizer.path))
    for name in TOKENIZER_FILES:
        if name not in NAMES.values() and (path.parent / name).is_file():
            shutil.copyfile(path.parent / name, folder / name)
    shutil.copyfile(path, folder / NAMES[origin.tokenizer.kind])
    other = NAMES["sentencepiece" if origin.tokenizer.kind == "tokenizer_json" else "tokenizer_json"]
    if (path.parent / other).is_file():
        shutil.copyfile(path.parent / other, folder / other)
    _write_tokenizer_config(folder, origin.tokenizer, own_template=origin.chat_tokens is not None)
    if origin.chat_tokens is not None:
        (folder / TEMPLATE).write_text(template(origin.chat_tokens), encoding="utf-8")
    (folder / GENERATION).write_text(json.dumps(chat.generation, indent=2) + "\n")


def template(tokens: ChatTokens) -> str:
    """A Jinja chat template with the same text as ``chat_tokens`` renders in training (``data/align/render.py``).

    The system header is always written, empty without a system message. Roles start with a capital, as in the data.
    """
    system, turn, end, name = (
        _literal(t) for t in (tokens.system_turn_start, tokens.turn_start, tokens.end_of_turn, tokens.end_of_name)
    )
    return (
        "{%- set first = messages[0] if messages else none -%}\n"
        "{%- set has_system = first is not none and first['role'] == 'system' -%}\n"
        f"{{{{- {system} + 'System' + {name} + (first['content'] if has_system else '') + {end} -}}}}\n"
        "{%- for message in (messages[1:] if has_system else messages) -%}\n"
        f"{{{{- {turn} + message['role'] | capitalize + {name} + message['content'] + {end} -}}}}\n"
        "{%- endfor -%}\n"
        "{%- if add_generation_prompt -%}\n"
        f"{{{{- {turn} + 'Assistant' + {name} -}}}}\n"
        "{%- endif -%}\n"
    )


def _literal(text: str) -> str:
    """A text as a Jinja string; Jinja reads JSON's escapes."""
    return json.dumps(text, ensure_ascii=False)


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}
    except Unreadable as error:
        raise RefusedInput(f"{path.parent}: {error}") from error


def _token_file(tokenizer: Tokenizer, path: Path) -> TokenFile:
    return read_json(path) if tokenizer.kind == "tokenizer_json" else read_sentencepiece(path)


def _id_of(file: TokenFile, token: str) -> int | None:
    return file.special.get(token)


def _write_tokenizer_config(folder: Path, tokenizer: Tokenizer, *, own_template: bool) -> None:
    path = folder / "tokenizer_config.json"
    config = _object(path)
    if not config:
        kind = "PreTrainedTokenizerFast" if tokenizer.kind == "tokenizer_json" else "LlamaTokenizer"
        config = {"tokenizer_class": kind, "eos_token": tokenizer.eod, "clean_up_tokenization_spaces": False}
    elif not (own_template and "chat_template" in config):
        return
    config.pop("chat_template", None)  # chat_template.jinja takes its place
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
