"""The blend file: sources, targets and the token budget, as the user writes them in YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from colosseum.data.indexed import Span, read_span
from colosseum.data.parts import documents
from colosseum.errors import Fault, RefusedInput
from colosseum.units import parse_count

MAX_BYTES = 16 << 20
MAX_SOURCES = 32_766
"""megatron-core stores the source of a sample as int16 and takes fewer than 32,767."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceEntry(_Model):
    path: str = Field(min_length=1)
    tags: tuple[str, ...] = ()
    weight: float | None = Field(None, gt=0)
    share: float | None = Field(None, gt=0, le=1)
    epochs: float | None = Field(None, gt=0)
    max_epochs: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _one_target(self) -> SourceEntry:
        if [self.weight, self.share, self.epochs].count(None) < 2:
            raise ValueError("give one of weight, share and epochs")
        return self


class BlendFile(_Model):
    """What `colosseum data blend` reads."""

    tokens: int = Field(gt=0)
    seq_length: int = Field(4096, gt=0)
    split: str = "99,1,0"
    temperature: float = Field(1.0, ge=0, description="exponent on a source's tokens: 1 = natural, 0 = equal")
    max_epochs: float | None = Field(None, gt=0)
    warn_epochs: float = Field(4.0, gt=0)
    shares: dict[str, float] = Field(default_factory=dict)
    base: dict[str, float] = Field(default_factory=dict)
    sources: tuple[SourceEntry, ...] = Field(min_length=1, max_length=MAX_SOURCES)

    @field_validator("tokens", mode="before")
    @classmethod
    def _tokens(cls, value: Any) -> Any:
        return parse_count(value) if isinstance(value, str) else value

    @field_validator("split")
    @classmethod
    def _split(cls, value: str) -> str:
        try:
            shares = [float(part) for part in value.split(",")]
        except ValueError as error:
            raise ValueError("must be three numbers, e.g. 99,1,0") from error
        if len(shares) != 3 or min(shares) < 0 or not 0 < shares[0] < float("inf"):
            raise ValueError("must be three numbers from 0 on, the first above 0, e.g. 99,1,0")
        return value

    @field_validator("shares", "base")
    @classmethod
    def _shares(cls, value: dict[str, float]) -> dict[str, float]:
        if any(not 0 <= share <= 1 for share in value.values()) or sum(value.values()) > 1 + 1e-9:
            raise ValueError("must be between 0 and 1 and add up to at most 1")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source with what its files say of it."""

    entry: SourceEntry
    path: Path
    tags: tuple[str, ...]
    tokens: int
    """Of the training part."""
    samples: int
    """Sequences of one pass over them."""


def read_blend(path: Path) -> BlendFile:
    """Raises RefusedInput: it cannot be read or breaks a rule; all faults at once."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RefusedInput(f"{path} is not a blend file: it has more than {MAX_BYTES >> 20} MiB")
        data = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except OSError as error:
        raise RefusedInput(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise RefusedInput(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(data, Mapping):
        raise RefusedInput(f"{path} must be a mapping with the keys tokens and sources")
    try:
        return BlendFile.model_validate(data)
    except ValidationError as invalid:
        raise RefusedInput(
            [
                Fault(
                    path=".".join(str(part) for part in fault["loc"]),
                    value=fault["input"] if isinstance(fault["input"], str | int | float) else None,
                    rule=fault["msg"],
                    where=str(path),
                )
                for fault in invalid.errors()[:10]
            ]
        ) from invalid


def read_sources(blend: BlendFile, folder: Path) -> list[Source]:
    """Tokens of each source's training part, from its .idx alone; tags also from its manifest.

    Args:
        folder: of the blend file; relative paths begin there.

    Raises:
        RefusedInput: an .idx is missing or damaged, does not match its .bin, or has too few tokens; the first ten.
    """
    faults: list[Fault] = []
    sources: list[Source] = []
    for number, entry in enumerate(blend.sources):
        prefix = folder / entry.path
        try:
            sources.append(_source(entry, prefix, blend))
        except RefusedInput as refused:
            faults.append(Fault(path=f"sources.{number}.path", value=entry.path, rule=str(refused)))
    if faults:
        raise RefusedInput(faults[:10])
    return sources


def _source(entry: SourceEntry, prefix: Path, blend: BlendFile) -> Source:
    span: Span = read_span(prefix, lambda count: documents(blend.split, "train", count))
    samples = (span.tokens - 1) // blend.seq_length
    if samples < 1:
        raise RefusedInput(
            f"its training part has {span.tokens:,} tokens, fewer than one sequence of {blend.seq_length:,} + 1"
        )
    tags = entry.tags or _manifest_tags(prefix)
    return Source(entry=entry, path=prefix, tags=tags, tokens=span.tokens, samples=samples)


def _manifest_tags(prefix: Path) -> tuple[str, ...]:
    """Language and domain of the corpus, if `data tokenize` wrote it."""
    try:
        manifest = json.loads(prefix.with_name(f"{prefix.name}.manifest.json").read_bytes())
        return tuple(tag for name in ("language", "domain") if isinstance(tag := manifest[name], str) and tag)
    except (OSError, ValueError, KeyError, TypeError):
        return ()
