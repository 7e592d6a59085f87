"""The layers of a deeper model, and the old layer that each is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from colosseum.errors import RefusedInput

Init = Literal["identity", "copy", "random"]
Moments = Literal["carry", "zero", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """For each layer of the new model (counted from 0): the old layer that it is made from, and whether it is new."""

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
    """Positions of the new layers.

    Args:
        at: ``evenly``, ``end``, or the layers (counted from 1, comma-separated) after which one is inserted.

    Raises:
        RefusedInput: the model would not grow, or ``at`` is not valid.
    """
    count = wanted - layers
    if count < 1:
        raise RefusedInput(
            f"--layers {wanted}: the checkpoint has {layers} layers; choose more: layers cannot be removed"
        )
    if at == "end":
        after = [layers] * count
    elif at == "evenly":
        after = [max((k + 1) * layers // count, 1) for k in range(count)]
    else:
        try:
            after = sorted(int(part) for part in at.split(","))
        except ValueError as error:
            raise RefusedInput(f"--at {at}: must be evenly, end, or layers such as 24,48,72,96") from error
        if len(after) != count or after[0] < 1 or after[-1] > layers:
            raise RefusedInput(f"--at {at}: must list {count} layers from 1 to {layers}, one for each new layer")
    order: list[tuple[int, bool]] = []
    for old in range(layers):
        order += [(old, False)] + [(old, True)] * after.count(old + 1)
    return Growth(order=tuple(order), init=init, moments=moments)
