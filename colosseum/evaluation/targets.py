"""What is evaluated: a checkpoint of ours, or a Hugging Face folder; and the request that an evaluation begins with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from colosseum.checkpoint.folders import read_metadata
from colosseum.data.align.hf_template import read_hf_template
from colosseum.data.tokenizer import refusing
from colosseum.errors import Fault, RefusedInput
from colosseum.evaluation import own_tasks
from colosseum.evaluation.encoding import Encoding, prepended
from colosseum.evaluation.folder import EvaluationFolder, Request
from colosseum.evaluation.harness import harness_version
from colosseum.evaluation.settings import Backend, Settings
from colosseum.rundir import CHECKPOINT_MARK, RunDir
from colosseum.runtime.generation.answering import codec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options of ``colosseum evaluate``."""

    tasks: tuple[str, ...]
    data: Path | None = None
    few_shot: int | None = None
    chat: bool | None = None
    """None = as the model was trained."""
    seed: int = 1234
    limit: int | None = None
    backend: Backend | None = None
    """None = the runtime for checkpoints, transformers for Hugging Face folders."""
    train_data: tuple[Path, ...] = ()
    batch_size: int = 8
    as_trained: bool = False


def request_of(target: Path, wanted: Wanted) -> Request:
    """The request of an evaluation, with every setting pinned.

    Raises:
        RefusedInput: the target cannot be evaluated like this; an own task's file has faults.
        EnvironmentFault: the harness is not installed.
    """
    version, weights = harness_version(), weights_of(target)
    ours = (target / CHECKPOINT_MARK).is_file()
    backend = wanted.backend or ("runtime" if ours else "transformers")
    if ours != (backend == "runtime"):
        rule = "runtime reads checkpoints, the others Hugging Face folders (`colosseum checkpoint export hf`)"
        raise RefusedInput([Fault(path="--backend", value=backend, rule=rule, where="command line")])
    form = _format_of(target, ours=ours)
    if wanted.chat and not form.template:
        rule = f"{target} has no chat template: it was not trained on chats"
        raise RefusedInput([Fault(path="--chat", value=None, rule=rule, where="command line")])
    chat = bool(form.template) if wanted.chat is None else wanted.chat
    if not wanted.tasks:
        raise RefusedInput("give --tasks NAME,…: tasks of lm-evaluation-harness, or .yaml files of your own")
    tasks = tuple(str(Path(t).resolve()) if own_tasks.is_own(t) else t for t in wanted.tasks)
    own = [Path(task) for task in tasks if own_tasks.is_own(task)]
    _refuse_same_names(own)
    if wanted.data is not None and not wanted.data.is_dir():
        raise RefusedInput([Fault(path="--data", value=str(wanted.data), rule="is no folder", where="command line")])
    settings = Settings(
        tasks=tasks,
        own_tasks={str(path): own_tasks.digest_of(path) for path in own},
        few_shot=wanted.few_shot,
        chat=chat,
        chat_template=hashlib.sha256(form.template.encode()).hexdigest() if chat else "",
        bos=form.bos,
        seed=wanted.seed,
        limit=wanted.limit,
        backend=backend,
        harness=version,
    )
    return Request(
        schema="colosseum.evaluation-request/1",
        target=str(target.resolve()),
        weights=weights,
        settings=settings,
        data=None if wanted.data is None else str(wanted.data.resolve()),
        train_data=tuple(str(prefix.resolve()) for prefix in wanted.train_data),
        batch_size=wanted.batch_size,
        as_trained=wanted.as_trained,
    )


def folder_of(request: Request, out: Path | None) -> EvaluationFolder:
    """Where an evaluation lies: ``out``, else beside the run's checkpoints, else under ./evaluations."""
    if out is not None:
        return EvaluationFolder(out.resolve())
    target = Path(request.target)
    name = f"{target.name}-{request.weights[:6]}-{request.settings.digest()[:8]}"
    run = RunDir(target.parent.parent)
    if target.parent.name == "checkpoints" and run.bundle.is_dir():
        return EvaluationFolder(run.evaluations / name)
    return EvaluationFolder(Path.cwd() / "evaluations" / name)


def weights_of(target: Path) -> str:
    """A hash that changes with the weights: of colosseum.json, which has a checksum of every file; of a Hugging Face
    folder, of the names, sizes and times of its files."""
    if (target / CHECKPOINT_MARK).is_file():
        read_metadata(target)
        return hashlib.sha256((target / CHECKPOINT_MARK).read_bytes()).hexdigest()
    if not (target / "config.json").is_file() or not any(target.glob("*.safetensors")):
        raise RefusedInput(f"{target} is neither a complete checkpoint nor a Hugging Face folder with safetensors")
    rows = [(p.name, (at := p.stat()).st_size, at.st_mtime_ns) for p in sorted(target.iterdir()) if p.is_file()]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _refuse_same_names(own: Sequence[Path]) -> None:
    names = [own_tasks.read_own(path).name for path in own]
    if len(set(names)) < len(names):
        raise RefusedInput([Fault(path="--tasks", value=names, rule="own tasks need different names")])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """How prompts of a model look."""

    bos: bool
    template: str
    """Text that the chat format is known by; empty = it was not trained on chats."""


def _format_of(target: Path, *, ours: bool) -> _Format:
    """Raises RefusedInput: there is no readable tokenizer.json."""
    if ours:
        encoding = Encoding(codec_of(target))
        return _Format(bos=encoding.bos, template=encoding.template)
    from tokenizers import Tokenizer

    path = target / "tokenizer.json"
    if not path.is_file():
        raise RefusedInput(f"{target} has no tokenizer.json")
    with refusing("the tokenizer cannot be read"):
        bos = bool(prepended(Tokenizer.from_file(str(path))))
    try:
        template = read_hf_template(path).source
    except RefusedInput:
        template = ""
    return _Format(bos=bos, template=template)
