"""Ranks that a launcher has started on several nodes: they find rank 0 through a file in a folder that all see.

Importing this needs no torch.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from colosseum.atomic import write_whole
from colosseum.checkpoint.folders import read_metadata
from colosseum.errors import EnvironmentFault
from colosseum.reading import Unreadable, read_object

if TYPE_CHECKING:
    from colosseum.runtime.generation.engine import Engine

WAIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """This process among the ranks of its job step."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    meeting: Path
    """File in which rank 0 says where it listens; its name has the job's number and start."""

    @staticmethod
    def from_slurm(folder: Path) -> Joined | None:
        """Of srun's variables; None = one process alone."""
        env = os.environ
        if int(env.get("SLURM_NTASKS", "1")) == 1 or "SLURM_PROCID" not in env:
            return None
        name = f"ranks-{env['SLURM_JOB_ID']}-{env.get('SLURM_RESTART_COUNT', '0')}.json"
        return Joined(
            rank=int(env["SLURM_PROCID"]),
            ranks=int(env["SLURM_NTASKS"]),
            local_rank=int(env["SLURM_LOCALID"]),
            local_ranks=int(env["SLURM_NTASKS_PER_NODE"]),
            meeting=folder / name,
        )


@contextmanager
def leading_ranks(joined: Joined, checkpoint: Path, vocab_size: int) -> Iterator[Engine]:
    """The engine of rank 0."""
    import torch.distributed as dist

    from colosseum.runtime.generation.engine import leading
    from colosseum.runtime.parallel import RankInfo

    host, wait = socket.gethostname(), timedelta(seconds=WAIT_S)
    store = dist.TCPStore(host, 0, joined.ranks, is_master=True, timeout=wait, wait_for_workers=False)
    write_whole(joined.meeting, json.dumps({"host": host, "port": store.port}).encode())
    layout = read_metadata(checkpoint).layout
    info = RankInfo(rank=0, ranks=joined.ranks, local_rank=joined.local_rank, local_ranks=joined.local_ranks)
    try:
        with leading(checkpoint, layout.tp, layout.pp, vocab_size, store, info) as engine:
            yield engine
    finally:
        joined.meeting.unlink(missing_ok=True)


def follow_rank_0(joined: Joined, checkpoint: Path, vocab_size: int) -> None:
    """Every other rank.

    Raises:
        EnvironmentFault: rank 0 did not say within five minutes where it listens.
    """
    from colosseum.runtime.generation.engine import follow
    from colosseum.runtime.parallel import RankInfo

    layout = read_metadata(checkpoint).layout
    info = RankInfo(rank=joined.rank, ranks=joined.ranks, local_rank=joined.local_rank, local_ranks=joined.local_ranks)
    follow(checkpoint, layout.tp, layout.pp, vocab_size, _address(joined.meeting), info)


def _address(meeting: Path) -> tuple[str, int]:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            found = read_object(meeting)
            return str(found["host"]), int(found["port"])
        except (FileNotFoundError, Unreadable):
            time.sleep(0.5)
    raise EnvironmentFault(f"rank 0 wrote no {meeting} within {WAIT_S:.0f} s")
