"""One evaluation from its request to its result: opens the model, runs the harness, writes the scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from colosseum.errors import RefusedInput
from colosseum.evaluation import harness, own_tasks
from colosseum.evaluation.answers import Answers, kept
from colosseum.evaluation.contamination import overlap
from colosseum.evaluation.folder import EvaluationFolder, Request, Result, as_row
from colosseum.evaluation.intervals import interval
from colosseum.evaluation.scores import Item, Scores, parts_of, scores_of
from colosseum.runtime.generation.joined import Joined, follow_rank_0, leading_ranks

Say = Callable[[str], None]


def evaluate(folder: EvaluationFolder, say: Say, joined: Joined | None = None) -> Result:
    """The result of the request in a folder; what an earlier call has computed is not computed again.

    Args:
        joined: this process is rank 0 of several that a launcher started; the others ``follow``.

    Raises:
        RefusedInput: a task or its data do not exist, a prompt is wrong, the checkpoint is damaged.
        EnvironmentFault: a package or a GPU is missing.
    """
    request = folder.request()
    with folder.alone():
        if (known := folder.read()) is not None:
            return known
        harness.harness_version()
        data = None if request.data is None else Path(request.data)
        harness.prepare(data)
        warnings.filterwarnings("ignore")  # of libraries, about themselves
        own = {
            name: own_tasks.config_of(_own(name, request)) for name in request.settings.tasks if own_tasks.is_own(name)
        }
        with kept(folder.answers) as answers, _model(request, answers, say, joined) as model:
            results = harness.scored(model, request.settings, own, data)
            cut = int(getattr(model.inner, "cut", 0))
        found = scores_of(results)
        contamination = _contamination(request, results, found, say) if request.train_data else {}
        result = _result(request, found, contamination, cut)
        folder.write(result, list(found.items))
        return result


def follow(folder: EvaluationFolder, joined: Joined) -> None:
    """One of the other ranks of ``evaluate``."""
    from colosseum.runtime import device
    from colosseum.runtime.generation.answering import codec_of

    warnings.filterwarnings("ignore")
    device.compile_nothing_on_cpu()
    target = Path(folder.request().target)
    follow_rank_0(joined, target, codec_of(target).vocab_size)


def _own(name: str, request: Request) -> own_tasks.OwnTask:
    path = Path(name)
    if own_tasks.digest_of(path) != request.settings.own_tasks[name]:
        raise RefusedInput(f"{name} was changed since this evaluation began: choose another --out")
    return own_tasks.read_own(path)


@contextmanager
def _model(request: Request, answers: Answers, say: Say, joined: Joined | None) -> Iterator[Any]:
    """The model of a request, ready for the harness."""
    from colosseum.evaluation.recorded import Recorded
    from colosseum.evaluation.template_check import check_prompts

    def check(model: Any, prompts: Any) -> None:
        check_prompts(model, prompts, chat=request.settings.chat)

    with _inner(request, say, joined) as inner:
        yield Recorded(inner, answers, check, say, batch_size=request.batch_size)


@contextmanager
def _inner(request: Request, say: Say, joined: Joined | None) -> Iterator[Any]:
    target, settings = Path(request.target), request.settings
    if settings.backend == "runtime":
        from colosseum.evaluation.encoding import Encoding
        from colosseum.evaluation.harness_model import RuntimeModel
        from colosseum.runtime.generation.answering import codec_of, loaded

        codec = codec_of(target)
        opened = (
            loaded(target, codec, say, as_trained=request.as_trained)
            if joined is None
            else leading_ranks(joined, target, codec.vocab_size)
        )
        with opened as engine:
            yield RuntimeModel(engine, Encoding(codec), batch_size=request.batch_size, seed=settings.seed)
        return
    import torch
    from lm_eval.api.registry import get_model

    say(f"loading {target} with {settings.backend}")
    name = {"transformers": "hf", "vllm": "vllm"}[settings.backend]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    yield get_model(name)(pretrained=str(target), batch_size=request.batch_size, dtype="auto", device=device)


def _result(request: Request, found: Scores, contamination: Mapping[str, Any], cut: int) -> Result:
    scores = tuple(as_row(s.task, s.metric, s.mean, s.interval) for s in found.scores)
    tasks = sorted({item.task for item in found.items})
    parts = {task: parts_of(found.items, task, found.main(task).metric) for task in tasks}
    return Result(
        schema="colosseum.evaluation/1",
        target=request.target,
        weights=request.weights,
        settings=request.settings,
        scores=scores,
        members=dict(found.members),
        parts={
            task: {kind: {n: (i.mean, i.low, i.high, i.count) for n, i in row.items()} for kind, row in its.items()}
            for task, its in parts.items()
            if its
        },
        contamination={task: dict(row) for task, row in contamination.items()},
        cut=cut,
    )


def _contamination(
    request: Request, results: Mapping[str, Any], found: Scores, say: Say
) -> dict[str, dict[str, float | int | None]]:
    """By task: questions that stand in the training data, and the score without them."""
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(_tokenizer(request)))
    texts, by_key = {}, {}
    for task, samples in results["samples"].items():
        for sample in samples:
            key = f"{task} {sample['doc_hash'][:24]}-{sample['doc_id']}"
            pieces = [text for text in _strings(sample["doc"]) if text]
            texts[key] = [e.ids for e in library.encode_batch(pieces, add_special_tokens=False)] if pieces else []
    by_key = {f"{item.task} {item.key}": item for item in found.items}
    shared = overlap(texts, [Path(prefix) for prefix in request.train_data], say)
    rows: dict[str, dict[str, float | int | None]] = {}
    for task in sorted({item.task for item in found.items}):
        metric = found.main(task).metric
        clean = [by_key[key] for key in shared.clean if by_key[key].task == task]
        rows[task] = {
            "compared": sum(by_key[key].task == task for key in shared.seen),
            "dirty": sum(by_key[key].task == task for key in shared.dirty),
            "clean": len(clean),
            "score_of_clean": _mean(clean, metric),
        }
    return rows


def _mean(items: list[Item], metric: str) -> float | None:
    pairs = [item.values[metric] for item in items if metric in item.values]
    return interval([v for v, _ in pairs], [w for _, w in pairs]).mean if pairs else None


def _strings(value: Any) -> Iterator[str]:
    """Every text inside a question."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)


def _tokenizer(request: Request) -> Path:
    target = Path(request.target)
    if request.settings.backend != "runtime":
        return target / "tokenizer.json"
    from colosseum.runtime.generation.answering import codec_of

    return codec_of(target).chat_format.tokenizer
