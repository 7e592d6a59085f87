"""Which layers a deeper model has, and where each comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from colosseum.errors import RefusedInput

Init = Literal["identity", "copy", "random"]
Moments = Literal["carry", "zero", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Which layers the new model has: for each its old layer, and whether it is new (both counted from 0)."""

    order: tuple[tuple[int, bool], ...]
    init: Init
    moments: Moments

    def place_of(self, old: int) -> int:
        return self.order.index((old, False))

    def new_after(self, old: int) -> list[int]:
        """New layers that are made from an old one."""
        return [new for new, layer in enumerate(self.order) if layer == (old, True)]

    @property
    def new_layers(self) -> list[int]:
        return [new for new, (_, is_new) in enumerate(self.order) if is_new]


def growth(layers: int, wanted: int, at: str, init: Init, moments: Moments) -> Growth:
    """Where new layers go.

    Args:
        at: ``evenly``, ``end``, or the layers (counted from 1, comma list) after which one is put.

    Raises:
        RefusedInput: it would not grow, or ``at`` does not fit.
    """
    count = wanted - layers
    if count < 1:
        raise RefusedInput(f"--layers {wanted}: the checkpoint has {layers} layers already; a model grows only")
    if at == "end":
        after = [layers] * count
    elif at == "evenly":
        after = [max((k + 1) * layers // count, 1) for k in range(count)]
    else:
        try:
            after = sorted(int(part) for part in at.split(","))
        except ValueError as error:
            raise RefusedInput(f"--at {at}: evenly, end, or layers as in 24,48,72,96") from error
        if len(after) != count or after[0] < 1 or after[-1] > layers:
            raise RefusedInput(f"--at {at}: names {count} layers from 1 to {layers}, for {count} new ones")
    order: list[tuple[int, bool]] = []
    for old in range(layers):
        order += [(old, False)] + [(old, True)] * after.count(old + 1)
    return Growth(order=tuple(order), init=init, moments=moments)
