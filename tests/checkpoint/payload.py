"""A pickle that runs code: it makes a folder, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path


class Touch:
    """Pickled, a call of ``os.mkdir``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)
