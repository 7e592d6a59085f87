"""Headers of safetensors files: names, shapes and byte ranges, read without torch.

The format: 8 bytes of length (little endian), a JSON header, then the tensors' bytes
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

from colosseum.errors import RefusedInput

MAX_HEADER = 100_000_000
"""The format's own limit."""
SIZES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1}
SIZES |= {"U8": 1, "BOOL": 1}


@dataclass(frozen=True, slots=True)
class Tensor:
    """Location of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """Byte offset in the file."""
    length: int


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a file.

    Raises:
        RefusedInput: it is not a safetensors file, or truncated.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if 2 <= size <= MAX_HEADER else None
            total = path.stat().st_size - 8 - size
        if not isinstance(header, dict):
            raise ValueError
        header.pop("__metadata__", None)
        found = {}
        for name, entry in header.items():
            begin, end = (int(number) for number in entry["data_offsets"])
            shape = tuple(int(n) for n in entry["shape"])
            if not 0 <= begin <= end <= total or end - begin != prod(shape) * SIZES[entry["dtype"]]:
                raise ValueError
            found[name] = Tensor(entry["dtype"], shape, 8 + size + begin, end - begin)
        return found
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RefusedInput(f"{path} is not a safetensors file, or is truncated") from error
