"""What the sections of a recipe are made of: numbers with ranges, texts, and the frozen section itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetPydanticSchema, StringConstraints
from pydantic_core import core_schema

from colosseum.units import parse_duration_s

Auto = Literal["auto"]
AUTO: Auto = "auto"


def checked_duration(text: str) -> str:
    parse_duration_s(text)
    return text


def _one_line(text: str) -> str:
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ValueError("must be one line of text without control characters")
    return text


Count = Annotated[int, Field(ge=1, le=10**15)]
Whole = Annotated[int, Field(ge=0, le=10**15)]
CountOrAuto = Count | Auto
BoolOrAuto = bool | Auto
Rate = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, ge=1e-30, le=1e30, allow_inf_nan=False)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_one_line)]
Token = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Duration = Annotated[str, StringConstraints(max_length=32), AfterValidator(checked_duration)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]

EngineName = Literal["mcore", "megatron-lm", "nemo1", "nemo2", "bridge"]
DEFAULT_ENGINE: EngineName = "mcore"


class Section(BaseModel):
    """A frozen part of a recipe. Strict types: ``"8"`` is not a number, ``true`` not an integer, ``no`` not text."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def read_by(parse: Callable[[str], Any]) -> GetPydanticSchema:
    """A type that a recipe writes as text: ``parse`` reads it, ``str`` writes it."""
    return GetPydanticSchema(
        lambda _, handler: core_schema.no_info_after_validator_function(
            parse, handler(Text), serialization=core_schema.to_string_ser_schema(when_used="always")
        )
    )


def tuples(value: Any) -> Any:
    """Lists to tuples: the strict model accepts tuples only."""
    if isinstance(value, dict):
        return {k: tuples(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return tuple(tuples(v) for v in value)
    return value
