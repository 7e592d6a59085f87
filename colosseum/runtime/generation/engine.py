"""A checkpoint that answers: its model on this process, or on the ranks that it starts beside itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from colosseum.checkpoint.folders import read_metadata
from colosseum.checkpoint.hf.origin import origin_of
from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.runtime import device, loading, model, parallel, reading
from colosseum.runtime.failures import ConfigFailure
from colosseum.runtime.generation.decoding import Batch, Decoder
from colosseum.runtime.generation.recipe import generation_recipe
from colosseum.runtime.generation.sampling import Sampling
from colosseum.runtime.generation.scoring import Score, Text, score
from colosseum.runtime.state import Training
from colosseum.runtime.tasks import task_of

MODULE = "colosseum.runtime.generation"
TIMEOUT = timedelta(days=7)
"""Ranks wait for what a user types next."""
Ends = Callable[[list[int]], bool]
"""Whether an answer ends with the last of these tokens."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Rank 0's side."""

    decoder: Decoder

    def answers(
        self, prompts: Mapping[int, Sequence[int]], sampling: Sampling, ends: Ends, *, rows: int
    ) -> Iterator[tuple[int, list[int]]]:
        """The tokens that follow each prompt, by its number, as batches of at most ``rows`` are done.

        Prompts of like length share a batch: none waits long for another one's.
        """
        order = sorted(prompts, key=lambda n: len(prompts[n]))
        for at in range(0, len(order), rows):
            numbers = order[at : at + rows]
            batch = Batch(prompts=[prompts[n] for n in numbers], numbers=numbers, sampling=sampling)
            _share(batch)
            yield from zip(numbers, self.decoder.run(batch, ends), strict=True)

    def scores(self, texts: Mapping[int, Text], *, rows: int) -> Iterator[tuple[int, Score]]:
        """The score of each text, by its number, as batches of at most ``rows`` are done, the longest first.

        The longest first: where memory is too small, it shows at once.
        """
        order = sorted(texts, key=lambda n: -len(texts[n].ids))
        for at in range(0, len(order), rows):
            numbers = order[at : at + rows]
            batch = [texts[n] for n in numbers]
            _share(batch)
            yield from zip(numbers, score(self.decoder, batch), strict=True)


@contextmanager
def started(checkpoint: Path, tp: int, pp: int, vocab_size: int) -> Iterator[Engine]:
    """The engine on ``tp * pp`` ranks; this process is the first, and the others end with it.

    Args:
        vocab_size: of the tokenizer: an id beyond it is no token.

    Raises:
        RefusedInput: the checkpoint cannot be loaded.
        EnvironmentFault: there are fewer GPUs than ranks.
    """
    ranks = tp * pp
    if device.is_cuda() and torch.cuda.device_count() < ranks:
        raise EnvironmentFault(f"the checkpoint's TP{tp} PP{pp} needs {ranks} GPUs; {torch.cuda.device_count()} here")
    store = dist.TCPStore("127.0.0.1", 0, ranks, is_master=True, timeout=timedelta(minutes=5), wait_for_workers=False)
    words = [sys.executable, "-P", "-m", MODULE, str(checkpoint), str(tp), str(pp), str(vocab_size), str(store.port)]
    others = [
        subprocess.Popen([*words, str(rank)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for rank in range(1, ranks)
    ]
    try:
        rank_info = parallel.RankInfo(rank=0, ranks=ranks, local_rank=0, local_ranks=ranks)
        with leading(checkpoint, tp, pp, vocab_size, store, rank_info) as engine:
            yield engine
        for other in others:
            other.wait(60)
    finally:
        for other in others:
            other.kill()


@contextmanager
def leading(
    checkpoint: Path, tp: int, pp: int, vocab_size: int, store: Any, rank_info: parallel.RankInfo
) -> Iterator[Engine]:
    """The engine on this rank, the first; the others ``follow`` until the block ends."""
    try:
        yield Engine(_decoder(checkpoint, tp, pp, vocab_size, store, rank_info))
        _share(None)
    finally:
        leave()


def follow(
    checkpoint: Path, tp: int, pp: int, vocab_size: int, address: tuple[str, int], rank_info: parallel.RankInfo
) -> None:
    """One of the other ranks: computes its part of each batch until rank 0 has no more.

    Args:
        address: host and port of rank 0's store.
    """
    store = dist.TCPStore(*address, rank_info.ranks, is_master=False, timeout=timedelta(minutes=5))
    decoder = _decoder(checkpoint, tp, pp, vocab_size, store, rank_info)
    while (work := _share(None)) is not None:
        if isinstance(work, Batch):
            decoder.run(work, None)
        else:
            score(decoder, work)
    dist.destroy_process_group()


Work = Batch | Sequence[Text]
"""Prompts to continue, or texts to score."""


def _share(work: Work | None) -> Work | None:
    """Rank 0's work, on all ranks; None ends them."""
    if dist.get_world_size() == 1:
        return work
    box = [work]
    dist.broadcast_object_list(box, 0)
    return box[0]


def _decoder(checkpoint: Path, tp: int, pp: int, vocab_size: int, store: Any, rank_info: parallel.RankInfo) -> Decoder:
    """Every rank calls it."""
    training = weights_loaded(checkpoint, tp, pp, store, rank_info)
    recipe, (chunk,) = training.recipe, training.model
    return Decoder(recipe=recipe, model=chunk.eval(), vocab_size=min(vocab_size, recipe.model.vocab_size))


def leave() -> None:
    """Ends what ``weights_loaded`` started."""
    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def weights_loaded(checkpoint: Path, tp: int, pp: int, store: Any, rank_info: parallel.RankInfo) -> Training:
    """Starts the process group and loads a checkpoint's weights; every rank calls it. There is no optimizer.

    Raises:
        RefusedInput: the checkpoint is damaged, or of a model that is not computed here.
    """
    metadata = read_metadata(checkpoint)
    recipe = generation_recipe(origin_of(checkpoint, metadata), metadata, tp, pp)
    device.prepare(rank_info.local_rank, rank_info.local_ranks)
    options: dict[str, Any] = {"device_id": device.current()} if device.is_cuda() else {}
    dist.init_process_group(
        device.backend(), store=store, rank=rank_info.rank, world_size=rank_info.ranks, timeout=TIMEOUT, **options
    )
    parallel.start(recipe, rank_info, TIMEOUT.total_seconds())
    reading.guard()
    _, chunks = model.build(recipe, trains=False)
    training = Training(recipe=recipe, task=task_of(recipe, checkpoint), model=chunks, optimizer=None, schedule=None)
    try:
        if changed := loading.changed_files(checkpoint, metadata):
            raise RefusedInput(f"{checkpoint} is damaged: {', '.join(changed[:3])} changed since it was written")
        loading.load(training, checkpoint, metadata, ("weights",))
    except ConfigFailure as failure:
        raise RefusedInput(str(failure)) from failure
    return training
