"""``python worker.py JOBS.json``: tokens of checkpoints, scores of texts, how far logits differ with and without cache.

Importing megatron-core takes longer than the answers, so one process opens them all.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")


def main(jobs_file: str) -> None:
    from colosseum.runtime import device

    device.compile_nothing_on_cpu()
    from colosseum.runtime.generation.engine import started
    from colosseum.runtime.generation.sampling import Sampling
    from colosseum.runtime.generation.scoring import Text

    for job in json.loads(Path(jobs_file).read_text()):
        with started(Path(job["checkpoint"]), job["tp"], job["pp"], job["vocab_size"]) as engine:
            found: dict[str, Any] = {}
            for name, (settings, rows) in job["runs"].items():
                answers = engine.answers(
                    dict(enumerate(job["prompts"])), Sampling(**settings), lambda _: False, rows=rows
                )
                found[name] = [tokens for _, tokens in sorted(answers)]
            texts = {number: Text(ids=prompt, start=1) for number, prompt in enumerate(job["prompts"])}
            found["scores"] = [score.log_probs for _, score in sorted(engine.scores(texts, rows=3))]
            if job["tp"] * job["pp"] == 1:
                found["cache_difference"] = cache_difference(engine.decoder, job["prompts"][0])
        Path(job["out"]).write_text(json.dumps(found))


def cache_difference(decoder: Any, prompt: list[int]) -> float:
    """The largest difference of any logit between one pass over a text's beginning and a pass with what came before."""
    import torch
    from megatron.core.inference.contexts import StaticInferenceContext

    context = StaticInferenceContext(2, len(prompt))
    both = torch.tensor([prompt, prompt[::-1]])
    cached = [decoder.logits(both[:, :5], context)]
    cached += [decoder.logits(both[:, n : n + 1], context) for n in range(5, len(prompt))]
    whole = [decoder.logits(both[:, :n], None) for n in range(5, len(prompt) + 1)]
    return float((torch.stack(cached) - torch.stack(whole)).abs().max())


if __name__ == "__main__":
    main(sys.argv[1])
