"""``python -m colosseum.evaluation FOLDER|LIST.json``: a job that evaluates the request in a folder.

Of a job array, the folder at the job's index in a list. Of several ranks (srun), the first one evaluates.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from colosseum.errors import ColosseumError, RefusedInput
from colosseum.evaluation.evaluating import evaluate, follow
from colosseum.evaluation.folder import EvaluationFolder
from colosseum.rundir import EXIT_FINAL
from colosseum.runtime.generation.joined import Joined
from colosseum.terminal import clean


def main(word: str) -> int:
    """0, or 76 where another start would end the same way."""
    path = Path(word)
    if path.is_file():
        path = Path(json.loads(path.read_text())[int(os.environ["SLURM_ARRAY_TASK_ID"])])

    def say(text: str) -> None:
        sys.stdout.write(f"{clean(text)}\n")
        sys.stdout.flush()

    folder = EvaluationFolder(path.resolve())
    joined = Joined.from_slurm(folder.root)
    try:
        if joined is not None and joined.rank > 0:
            follow(folder, joined)
            return 0
        result = evaluate(folder, say, joined)
    except ColosseumError as error:
        say(f"error: {error}")
        return EXIT_FINAL if isinstance(error, RefusedInput) else error.exit_code
    for score in result.scores:
        say(f"{score.task} {score.metric} {score.mean:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
