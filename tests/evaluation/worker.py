"""``python worker.py FOLDER``: every evaluation that the tests look at, in one process: the harness loads slowly.

Writes FOLDER/found.json.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
import warnings
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

from tests.evaluation import made

warnings.filterwarnings("ignore")
MMLU = ("mmlu_abstract_algebra", "mmlu_astronomy")


def main(root: Path) -> None:
    from colosseum.evaluation import harness

    data = made.write_data(root / "data")
    harness.prepare(data)
    from colosseum.checkpoint.hf.exporting import export_hf
    from colosseum.checkpoint.hf.importing import import_hf

    for letter in "AD":
        import_hf(made.write_model(root / f"in-{letter}", letter), root / letter)
    export_hf(root / "A", root / "exported")
    harness._manager(shipped=True)
    # A process that has had ranks can neither be forked, nor run transformers: torch's names then stand for the CPU.
    lines = killed(root, data)
    theirs = {chat: equal(root, "exported", data, chat) for chat in (False, True)}
    found: dict[str, Any] = {"by_hand": by_hand(root, data)}
    found["prompts"] = prompts(root, data, "transformers")
    found["equal"] = {str(chat): (equal(root, "A", data, chat), theirs[chat]) for chat in theirs}
    found["planted"] = {letter: evaluated(root / letter, root / f"planted-{letter}", data) for letter in "AD"}
    found["killed"] = lines | evaluated(root / "A", root / "killed", data, batch_size=1)
    found["prompts"] |= prompts(root, data, "runtime")
    found["own"] = own(root, data)
    found["selected"] = selected(root, data)
    (root / "found.json").write_text(json.dumps(found))


def evaluated(target: Path, out: Path, data: Path, **options: Any) -> dict[str, Any]:
    """The result of one evaluation, and what it said."""
    from colosseum.errors import RefusedInput
    from colosseum.evaluation.evaluating import evaluate
    from colosseum.evaluation.targets import Wanted, folder_of, request_of

    said: list[str] = []
    wanted = Wanted(**{"tasks": MMLU, "few_shot": 5, "data": data, **options})
    try:
        request = request_of(target, wanted)
        folder = folder_of(request, out)
        folder.begin(request)
        result = evaluate(folder, said.append)
    except RefusedInput as refused:
        return {"refused": str(refused)}
    return {**result.model_dump(mode="json"), "said": said}


def equal(root: Path, target: str, data: Path, chat: bool) -> dict[str, Any]:
    """Result and answers of the same tasks, whichever the target."""
    out = root / f"equal-{target}-{chat}"
    tasks = MMLU if chat else (*MMLU, "ifeval")
    result = evaluated(root / target, out, data, tasks=tasks, chat=chat, few_shot=2)
    rows = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    return {"result": result, "answers": {row["key"]: row["answer"] for row in rows}}


def by_hand(root: Path, data: Path) -> dict[str, Any]:
    """The harness without us."""
    from lm_eval import simple_evaluate

    from colosseum.evaluation.harness import _manager

    with chdir(data):
        results = simple_evaluate(
            model="hf",
            model_args={"pretrained": str(root / "exported"), "dtype": "auto"},
            device="cpu",
            tasks=[*MMLU, "ifeval"],
            num_fewshot=2,
            task_manager=_manager(shipped=True),
        )
    scores: dict[str, Any] = results["results"]
    return scores


def killed(root: Path, data: Path) -> dict[str, Any]:
    """An evaluation that is killed once it has answers: their number, and whether it was at its end."""
    out = root / "killed"
    child = os.fork()
    if child == 0:
        evaluated(root / "A", out, data, batch_size=1)
        os._exit(0)
    answers, end = out / "answers.jsonl", time.monotonic() + 120
    while (not answers.exists() or not answers.stat().st_size) and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = {"lines": answers.read_text().count("\n"), "finished": (out / "evaluation.json").exists()}
    with answers.open("a") as file:
        file.write('{"key": "torn')
    return found


FOLDERS: dict[str, dict[str, Any]] = {
    "once": {"bos": True},
    "unnamed": {"bos": True, "named": False, "template": "<s>" + made.CHAT_TEMPLATE},
    "twice": {"bos": True, "template": made.TWICE},
    "chatml": {"template": made.CHATML},
}
"""Models that differ in BOS and template."""


def prompts(root: Path, data: Path, backend: str) -> dict[str, Any]:
    """One question put to each of the folders."""
    from colosseum.checkpoint.hf.importing import import_hf

    found = {}
    for name, options in FOLDERS.items():
        folder = root / f"{name}-hf"
        if not folder.exists():
            made.write_model(folder, **options)
        if backend == "runtime":
            import_hf(folder, root / name)
            folder = root / name
        out = root / f"prompts-{backend}-{name}"
        result = evaluated(folder, out, data, tasks=MMLU[:1], few_shot=0, limit=1, chat=name != "once")
        answers = (out / "answers.jsonl").read_text().splitlines()
        found[f"{backend} {name}"] = {**result, "answers": [json.loads(line) for line in answers]}
    return found


def own(root: Path, data: Path) -> dict[str, Any]:
    """Own tasks of each kind, with questions that stand in the training data."""
    from tokenizers import Tokenizer

    from colosseum.data.indexed import write_dataset

    library = Tokenizer.from_file(str(root / "in-A" / "tokenizer.json"))
    with write_dataset(root / "shard", 512) as writer:
        writer.add_document(library.encode("Somebody asks: " + made.OWN["choices"]["items"][0]["question"]).ids)
    tasks = (*made.write_own(root / "own"), str(made.write_guides_task(root)))
    return evaluated(root / "A", root / "own-out", data, tasks=tasks, chat=False, train_data=(root / "shard",))


def selected(root: Path, data: Path) -> dict[str, Any]:
    """``colosseum select --promote`` for a run of two checkpoints with a parent, and what the pointer then names."""
    runs = root / "runs"
    made.write_run(runs, "base", {5: root / "D"})
    made.write_run(runs, "sft", {10: root / "D", 20: root / "A"}, parent=("base", 5))
    words = ["select", "sft", "--by", "mmlu_astronomy,mmlu_abstract_algebra", "--few-shot", "0"]
    words += ["--data", str(data), "--runs", str(runs)]
    table = spoken(*words)
    document = json.loads(spoken(*words, "--promote", "--json"))
    inspected = json.loads(spoken("checkpoint", "inspect", "sft@selected", "--runs", str(runs), "--json"))
    return {"table": table, "document": document, "inspected": inspected}


def spoken(*words: str) -> str:
    """What a command prints."""
    from colosseum.cli.main import main as cli

    out = io.StringIO()
    with redirect_stdout(out):
        code = cli(words)
    assert code == 0, out.getvalue()
    return out.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
