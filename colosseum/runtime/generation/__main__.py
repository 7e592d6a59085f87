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
    from colosseum.runtime.parallel import RankInfo

    checkpoint, *numbers = sys.argv[1:]
    tp, pp, vocab_size, port, rank = map(int, numbers)
    rank_info = RankInfo(rank=rank, ranks=tp * pp, local_rank=rank, local_ranks=tp * pp)
    follow(Path(checkpoint), tp, pp, vocab_size, ("127.0.0.1", port), rank_info)
