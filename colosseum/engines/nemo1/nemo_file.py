"""The model configuration inside a ``.nemo``. No weights are read, and a stranger's file is read with limits."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from pathlib import Path
from typing import Any

from colosseum.errors import RefusedInput
from colosseum.reading import Unreadable, read_bytes
from colosseum.recipe.scan import MAX_BYTES, scan

CONFIG = "model_config.yaml"
SHAPE = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
"""Keys that tell which model it is; ``ModelShape`` has them by the same names."""


def configuration(path: Path) -> dict[str, Any] | None:
    """Of a folder or a tar file; None = it holds none that can be read."""
    try:
        text = read_bytes(path / CONFIG, MAX_BYTES) if path.is_dir() else _packed(path)
        # NeMo's own interpolations are faults of a recipe only; they stay as text.
        found = scan(text.decode(), CONFIG).data
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, Unreadable, ValueError, RefusedInput):
        return None
    return found if isinstance(found, dict) else None


def _packed(path: Path) -> bytes:
    """The member of a tar file; empty = there is none, or it is too long."""
    with tarfile.open(path) as archive:
        member = next((m for m in archive if m.isfile() and m.name in (CONFIG, f"./{CONFIG}")), None)
        file = archive.extractfile(member) if member and member.size <= MAX_BYTES else None
        return file.read() if file else b""
