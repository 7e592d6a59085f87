"""Generated tokens: transformers' greedy ones, whatever the batch, the layout and the cache; sampled ones by seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colosseum.checkpoint.hf.importing import import_hf
from colosseum.runtime.generation.sampling import Sampling, choose, draws_of
from tests.checkpoint.hf import models

WORKER = Path(__file__).with_name("worker.py")
FIGURES = Path(models.__file__).parent / "figures"
GREEDY = {"max_tokens": models.NEW}
WARM = {"temperature": 1.5, "top_p": 0.9, "max_tokens": 20, "seed": 7}
RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "greedy": (GREEDY, 8),
    "alone": (GREEDY, 1),
    "warm": (WARM, 8),
    "warm-again": (WARM, 2),
    "warm-other-seed": ({**WARM, "seed": 8}, 8),
}


def answered(jobs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """What worker.py finds for checkpoints."""
    for number, job in enumerate(jobs):
        job["out"] = str(folder / f"{number}.json")
    file = folder / "jobs.json"
    file.write_text(json.dumps(jobs))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(WORKER), str(file)], env=env, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return [json.loads(Path(job["out"]).read_text()) for job in jobs]


def test_greedy_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    """In a batch with prompts of other lengths, alone, and on two tensor-parallel ranks."""
    tokens = list(models.TOKENS)
    prompts = [tokens, tokens[:7], tokens[10:12], tokens[5:31]]
    jobs = []
    for name, tp in [*((name, 1) for name in models.CONFIGS), ("llama3", 2)]:
        folder = tmp_path / name
        if not folder.exists():
            import_hf(models.write(folder / "in", name), folder / "ckpt")
        layout = {"tp": tp, "pp": 1, "vocab_size": models.VOCAB}
        jobs.append({"checkpoint": str(folder / "ckpt"), "prompts": prompts, "runs": RUNS, **layout})
    found = answered(jobs, tmp_path)
    scores = [its.pop("scores") for its in found]
    for job, its, (text, *_) in zip(jobs, found, scores, strict=True):
        name = Path(job["checkpoint"]).parent.name
        figures = np.load(FIGURES / f"{name}.npz")
        assert its["greedy"][0] == figures["generated"].tolist(), name
        for position, logits in zip(models.SHOWN[:2], figures["logits"][:2], strict=True):
            expected = logits[tokens[position + 1]] - np.logaddexp.reduce(logits)
            assert text[position] == pytest.approx(expected, abs=1e-4), name
        assert its["greedy"] == its["alone"]
        assert its["warm"] == its["warm-again"], "the batch changes no answer"
        assert all(a != b for a, b in zip(its["warm"], its["warm-other-seed"], strict=True))
        assert max(max(answer) for answer in its["warm"]) < models.VOCAB
        assert its.get("cache_difference", 0.0) < 1e-5
    for one, other in zip(scores[0], scores[-1], strict=True):
        assert one == pytest.approx(other, abs=1e-4), "tp 2 scores as tp 1"
    assert found[-1] == {k: v for k, v in found[0].items() if k != "cache_difference"}, "tp 2 answers as tp 1"


# --- choosing ----------------------------------------------------------------------------------------------------


def shares(logits: list[float], sampling: Sampling, draws: int = 20_000) -> list[float]:
    """How often each token is chosen."""
    draws_B = torch.from_numpy(draws_of(1, 2).random(draws))
    found = choose(torch.tensor(logits).repeat(draws, 1), sampling, draws_B)
    return (torch.bincount(found, minlength=len(logits)) / draws).tolist()


def test_tokens_come_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([0.1, 0.5, 0.3, 0.1]).log().tolist()
    assert shares(logits, Sampling(temperature=1.0)) == pytest.approx([0.1, 0.5, 0.3, 0.1], abs=0.01)
    squares = [0.01, 0.25, 0.09, 0.01]
    assert shares(logits, Sampling(temperature=0.5)) == pytest.approx([s / 0.36 for s in squares], abs=0.01)


def test_top_p_is_the_fewest_tokens_that_reach_it() -> None:
    logits = torch.tensor([0.1, 0.5, 0.3, 0.1]).log().tolist()
    assert shares(logits, Sampling(temperature=1.0, top_p=0.7)) == pytest.approx([0, 0.625, 0.375, 0], abs=0.01)
    assert shares(logits, Sampling(temperature=1.0, top_p=0.5)) == pytest.approx([0, 1, 0, 0])
    assert shares(logits, Sampling(temperature=1.0, top_p=0.0)) == pytest.approx([0, 1, 0, 0])


def test_a_draw_at_either_end_chooses_a_token() -> None:
    logits = torch.tensor([[0.0, 1.0, float("-inf")]] * 2)
    ends = torch.tensor([0.0, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert choose(logits, Sampling(temperature=1.0), ends).tolist() == [0, 1]
    assert choose(logits, Sampling(temperature=1e-9), ends).tolist() == [1, 1]
