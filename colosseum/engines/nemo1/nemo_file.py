"""The model configuration inside a ``.nemo``. No weights are read."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import yaml

CONFIG = "model_config.yaml"
SHAPE = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
"""Keys that tell which model it is; ``ModelShape`` has them by the same names."""


def configuration(path: Path) -> dict[str, Any] | None:
    """Of a folder or a tar file; None = it holds none that can be read."""
    try:
        if path.is_dir():
            found = yaml.safe_load((path / CONFIG).read_bytes())
        else:
            with tarfile.open(path) as archive:
                member = next((m for m in archive if m.isfile() and m.name in (CONFIG, f"./{CONFIG}")), None)
                file = archive.extractfile(member) if member else None
                found = yaml.safe_load(file) if file else None
    except (OSError, tarfile.TarError, yaml.YAMLError):
        return None
    return found if isinstance(found, dict) else None
