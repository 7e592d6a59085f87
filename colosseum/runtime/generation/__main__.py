"""``python -m colosseum.runtime.generation …``: a rank that `engine.started` starts beside itself."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    from colosseum.runtime import device

    device.compile_nothing_on_cpu()
    from colosseum.runtime.generation.engine import follow

    checkpoint, *numbers = sys.argv[1:]
    follow(Path(checkpoint), *map(int, numbers))
