"""A Hugging Face model folder: its config, its tensors one at a time, its tokenizer's files. No code of it is run."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from colosseum.checkpoint.hf.config import Family, read_config
from colosseum.checkpoint.hf.mapping import OUTPUT, Part, parts
from colosseum.data.eod import read_json, read_sentencepiece
from colosseum.errors import INSTALL_TRAIN, EnvironmentFault, Fault, RefusedInput
from colosseum.reading import Unreadable, read_object
from colosseum.recipe.schema import Model
from colosseum.records import parse_object

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
GENERATION = "generation_config.json"
Kind = Literal["tokenizer_json", "sentencepiece"]
FILES: dict[Kind, str] = {"tokenizer_json": "tokenizer.json", "sentencepiece": "tokenizer.model"}
MAX_HEADER = 1 << 28
DTYPES = {"BF16": "bf16", "F32": "fp32", "F16": "fp32"}
"""dtype names of a recipe; F16 becomes fp32, which represents every F16 number exactly."""
UNUSED = ("rotary_emb.inv_freq",)
"""Older transformers stored it; it is computed from the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Location of a tensor."""

    file: str
    dtype: str
    """The name in safetensors."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFile:
    kind: Kind
    name: str
    eod: str
    """End-of-text token ids from config.json and generation_config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfModel:
    """A checked folder: it has exactly the tensors of the architecture, with the right shapes."""

    folder: Path
    config: Mapping[str, Any]
    family: Family
    model: Model
    tensors: Mapping[str, Stored]
    generation: Mapping[str, Any]
    tokenizer: TokenizerFile | None

    @property
    def dtype(self) -> str:
        """The dtype that represents all weights without loss."""
        return "fp32" if any(DTYPES[t.dtype] == "fp32" for t in self.tensors.values()) else "bf16"

    def parts(self) -> Iterator[Part]:
        return parts(self.family, self.model)


def read_folder(folder: Path) -> HfModel:
    """Reads and checks a folder; tensors are not read yet.

    Raises:
        RefusedInput: it is not a model folder, its architecture is not supported, or tensors do not match the config.
    """
    config = _object(folder / "config.json")
    if config is None:
        raise RefusedInput(f"{folder} is not a Hugging Face model: it has no config.json")
    family, model = read_config(config)
    tensors = _tensors(folder)
    _check(folder, family, model, tensors)
    generation = _object(folder / GENERATION) or {
        key: config[key] for key in ("bos_token_id", "eos_token_id") if config.get(key) is not None
    }
    return HfModel(
        folder=folder,
        config=config,
        family=family,
        model=model,
        tensors=tensors,
        generation=generation,
        tokenizer=_tokenizer(folder, config, generation),
    )


def _object(path: Path) -> dict[str, Any] | None:
    try:
        return read_object(path)
    except FileNotFoundError:
        return None
    except Unreadable as error:
        raise RefusedInput(f"{path.parent}: {error}") from error


# --- tensors -----------------------------------------------------------------------------------------------------


def _tensors(folder: Path) -> dict[str, Stored]:
    index = _object(folder / INDEX)
    if index is not None:
        named = index.get("weight_map")
        files = sorted({str(f) for f in named.values()}) if isinstance(named, dict) else []
    else:
        files = sorted(p.name for p in folder.glob("*.safetensors"))
    if not files:
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        why = (
            "its weights are pickle files, which can run code: save the model again as safetensors"
            if pickled
            else "no weights"
        )
        raise RefusedInput(f"{folder} has no *.safetensors: {why}")
    found: dict[str, Stored] = {}
    for file in files:
        if Path(file).name != file:
            raise RefusedInput(f"{folder / INDEX} refers to {file!r}, which is not a file in its folder: refused")
        for name, stored in _header(folder / file).items():
            if name in found:
                raise RefusedInput(f"{folder}: tensor {name} is both in {found[name].file} and in {file}")
            found[name] = stored
    return found


def _header(path: Path) -> dict[str, Stored]:
    """Names and shapes: 8 bytes of length, then JSON (https://huggingface.co/docs/safetensors).

    Raises:
        RefusedInput: the file is missing, truncated or not a safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = parse_object(file.read(length)) if length <= MAX_HEADER else None
    except FileNotFoundError as error:
        raise RefusedInput(f"{path} is missing, but {INDEX} lists it") from error
    except (OSError, struct.error) as error:
        raise RefusedInput(f"{path} cannot be read as safetensors") from error
    if header is None:
        raise RefusedInput(f"{path} cannot be read as safetensors")
    header.pop("__metadata__", None)
    found, end = {}, 0
    try:
        for name, entry in header.items():
            end = max(end, int(entry["data_offsets"][1]))
            shape = tuple(int(n) for n in entry["shape"])
            found[name] = Stored(file=path.name, dtype=str(entry["dtype"]), shape=shape)
    except (TypeError, KeyError, ValueError, IndexError) as error:
        raise RefusedInput(f"{path} cannot be read as safetensors") from error
    if size != 8 + length + end:
        raise RefusedInput(f"{path} has {size:,} bytes, but its header says {8 + length + end:,}: it may be truncated")
    return found


def _check(folder: Path, family: Family, model: Model, tensors: Mapping[str, Stored]) -> None:
    wanted = {n: s for p in parts(family, model) for n, s in zip(p.names, p.shapes, strict=True)}
    faults = []
    for name, shape in wanted.items():
        stored = tensors.get(name)
        if stored is None:
            faults.append(_fault(name, None, "is missing"))
        elif stored.shape != shape:
            faults.append(_fault(name, list(stored.shape), f"must have shape {list(shape)} by config.json"))
        elif stored.dtype not in DTYPES:
            faults.append(_fault(name, stored.dtype, "this dtype is not supported", tuple(DTYPES)))
    for name in tensors.keys() - wanted.keys():
        if name.endswith(UNUSED) or (name == OUTPUT and model.tied_embeddings):
            continue
        faults.append(_fault(name, list(tensors[name].shape), f"is not a tensor of {family.architecture}"))
    if faults:
        more = len(faults) - 8
        shown = faults[:8] + ([_fault("", more, f"and {more:,} more tensors")] if more > 0 else [])
        raise RefusedInput(shown)


def _fault(path: str, value: Any, rule: str, nearest: tuple[Any, ...] = ()) -> Fault:
    return Fault(path=path, value=value, rule=rule, nearest=nearest, where="safetensors")


@contextmanager
def opened(source: HfModel) -> Iterator[Any]:
    """A function from a tensor's name to the tensor; files are memory-mapped: only requested tensors are read."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise EnvironmentFault(f"reading Hugging Face models needs safetensors; {INSTALL_TRAIN}") from error
    with ExitStack() as stack:
        files: dict[str, Any] = {}

        def get(name: str) -> Any:
            file = source.tensors[name].file
            try:
                if file not in files:
                    files[file] = stack.enter_context(safe_open(str(source.folder / file), framework="pt"))
                return files[file].get_tensor(name)
            except SafetensorError as error:
                raise RefusedInput(f"{source.folder / file} cannot be read: {error}") from error

        yield get


# --- tokenizer ---------------------------------------------------------------------------------------------------


def as_ids(value: Any) -> list[int]:
    """``eos_token_id`` can be one id, a list, or missing."""
    values = value if isinstance(value, list) else [value]
    return [v for v in values if isinstance(v, int) and not isinstance(v, bool)]


def _tokenizer(folder: Path, config: Mapping[str, Any], generation: Mapping[str, Any]) -> TokenizerFile | None:
    for kind, name in FILES.items():
        if (folder / name).is_file():
            file = read_json(folder / name) if kind == "tokenizer_json" else read_sentencepiece(folder / name)
            special = {number: token for token, number in file.special.items()}
            ids = as_ids(config.get("eos_token_id")) + as_ids(generation.get("eos_token_id"))
            token = next((special[i] for i in ids if i in special), None) or _eos_named(folder, special.values())
            return None if token is None else TokenizerFile(kind=kind, name=name, eod=token)
    return None


def _eos_named(folder: Path, special: Any) -> str | None:
    named = (_object(folder / "tokenizer_config.json") or {}).get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    return text if isinstance(text, str) and text in special else None
