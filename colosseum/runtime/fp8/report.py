"""What was seen of a model's tensors as a table of figures, and which layers to keep in BF16."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from colosseum.console import columns
from colosseum.runtime.fp8.casting import LOWEST, Numbers

Scaling = Literal["delayed", "tensorwise", "blockwise"]
MODULES = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
HYBRID = {"input": "e4m3", "weight": "e4m3", "gradient": "e5m2"}
"""``precision.fp8_format: hybrid``: the format of each operand."""
UNDERFLOW_LIMIT, OVERFLOW_LIMIT = 0.01, 1e-3
"""Shares of a tensor's numbers from which on its layer is proposed for BF16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One tensor; shares are of its numbers that are not 0."""

    layer: int
    module: str
    kind: str
    format: str
    """The one that ``hybrid`` uses for it."""
    zeros: float
    amax: float
    underflow: dict[str, dict[str, float]]
    """Share that becomes 0, by format and scaling."""
    overflow: dict[str, float | None]
    """Share beyond the format's largest number under delayed scaling, by format; None = only one batch was seen."""
    error_db: dict[str, float | None]
    """Signal to rounding error under tensorwise scaling, by format; None = no error."""
    exponents: tuple[int, ...]
    """How many numbers have the exponent ``LOWEST + i`` (floor of log2)."""

    def bad(self, scaling: Scaling) -> bool:
        """Whether the format that ``hybrid`` uses loses too much of it."""
        how = "tensorwise" if scaling == "delayed" else scaling
        if self.underflow[self.format][how] > UNDERFLOW_LIMIT:
            return True
        return scaling == "delayed" and (self.overflow[self.format] or 0.0) > OVERFLOW_LIMIT


def rows_of(found: Mapping[str, Numbers]) -> list[Row]:
    """By layer, module and kind."""
    rows = []
    for name, numbers in found.items():
        layer, module, kind = name.split(".")
        count = max(1, numbers.count)
        casts = numbers.casts
        rows.append(
            Row(
                layer=int(layer),
                module=module,
                kind=kind,
                format=HYBRID[kind],
                zeros=numbers.zeros / max(1, numbers.count + numbers.zeros),
                amax=numbers.amax,
                underflow={f: {how: n / count for how, n in cast.underflow.items()} for f, cast in casts.items()},
                overflow={f: cast.overflow / numbers.judged if numbers.judged else None for f, cast in casts.items()},
                error_db={f: _decibel(numbers.power, cast.error) for f, cast in casts.items()},
                exponents=tuple(numbers.exponents),
            )
        )
    return sorted(rows, key=lambda row: (row.layer, MODULES.index(row.module), row.kind))


def _decibel(power: float, error: float) -> float | None:
    return 10 * math.log10(power / error) if power > 0 and error > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Which layers to keep in BF16 for a scaling."""

    scaling: Scaling
    layers: tuple[int, ...]
    """Those in which some tensor loses too much."""
    overrides: tuple[str, ...]
    """``key=value`` words; empty = nothing to change, or no layers at the two ends would help."""
    reason: str


def propose(rows: list[Row], scaling: Scaling, num_layers: int) -> Proposal:
    """The fewest layers at the two ends of the model that hold every bad one.

    More than half of the layers is no proposal: then another scaling is, if it loses less.
    """
    bad = tuple(sorted({row.layer for row in rows if row.bad(scaling)}))
    if not bad:
        return Proposal(scaling=scaling, layers=(), overrides=(), reason="no layer loses too much")
    first, last = ends(bad, num_layers)
    if first + last <= num_layers / 2:
        words = ("bf16_layers.first", first), ("bf16_layers.last", last)
        overrides = tuple(f"precision.{name}={n}" for name, n in words if n)
        return Proposal(scaling=scaling, layers=bad, overrides=overrides, reason=f"keeps {first + last} in BF16")
    better = [s for s in ("tensorwise", "blockwise") if s != scaling and not any(row.bad(s) for row in rows)]
    if better:
        reason = f"{first + last} of {num_layers} layers would be in BF16"
        return Proposal(scaling=scaling, layers=bad, overrides=(f"precision.fp8={better[0]}",), reason=reason)
    reason = f"{len(bad)} of {num_layers} layers lose too much under any scaling: stay in BF16"
    return Proposal(scaling=scaling, layers=bad, overrides=("precision.fp8=none",), reason=reason)


def ends(layers: tuple[int, ...], num_layers: int) -> tuple[int, int]:
    """The smallest ``first`` and ``last`` such that every layer is among the first ones or the last ones."""
    edges = (0, *layers, num_layers + 1)
    before, after = max(pairwise(edges), key=lambda pair: pair[1] - pair[0])
    return before, num_layers + 1 - after


def document(rows: list[Row], proposal: Proposal, **about: Any) -> dict[str, Any]:
    """The JSON form."""
    return {
        "schema": "colosseum.fp8-scan/1",
        **about,
        "proposal": asdict(proposal),
        "lowest_exponent": LOWEST,
        "tensors": [asdict(row) for row in rows],
    }


def table(rows: list[Row], scaling: Scaling) -> Any:
    """The worst input, weight and gradient of each layer."""
    how = "tensorwise" if scaling == "delayed" else scaling
    lines = []
    for layer in sorted({row.layer for row in rows}):
        for kind in HYBRID:
            mine = [row for row in rows if (row.layer, row.kind) == (layer, kind)]
            row = max(mine, key=lambda row: row.underflow[row.format][how])
            over, error = row.overflow[row.format], row.error_db[row.format]
            lines.append(
                [
                    str(layer),
                    f"{row.module} {kind}",
                    row.format,
                    f"{row.underflow[row.format][how]:.3%}",
                    "-" if over is None or scaling != "delayed" else f"{over:.4%}",
                    "-" if error is None else f"{error:.0f} dB",
                ]
            )
    return columns(lines, ["layer", "tensor", "format", "becomes 0", "overflows", "signal/error"])


def sentence(proposal: Proposal) -> str:
    """The proposal in words."""
    if not proposal.layers:
        return f"{proposal.scaling}: {proposal.reason}"
    layers = ", ".join(map(str, proposal.layers))
    return f"{proposal.scaling}: layers {layers} lose too much: {' '.join(proposal.overrides)} ({proposal.reason})"
