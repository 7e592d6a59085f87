"""Runs lm-evaluation-harness on a model: which tasks, from which data, with which seeds. Needs the extra ``eval``."""

from __future__ import annotations

import difflib
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from colosseum.errors import EnvironmentFault, RefusedInput
from colosseum.evaluation.settings import Settings

PACKAGE = "lm_eval"
PUNKT = "tokenizers/punkt_tab"


def harness_version() -> str:
    """Raises EnvironmentFault: it is not installed."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError as error:
        raise EnvironmentFault("evaluating needs lm-evaluation-harness: pip install 'colosseum[eval]'") from error


def prepare(data: Path | None) -> None:
    """Before the harness is imported: quiet, and offline where the user's own folder has the data.

    Its libraries read these variables once, when they are imported.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["TQDM_DISABLE"] = "1"
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if data is not None:
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    for name in ("lm_eval", "datasets", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


@cache
def _manager(*, shipped: bool) -> Any:
    """The harness's list of tasks; its own are thousands of files, so one process reads them once, if it needs them."""
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=shipped)


def refuse_unknown(names: Sequence[str]) -> None:
    """Raises RefusedInput: the harness has no task, group or tag of a name."""
    if not names:
        return
    known = _manager(shipped=True).all_tasks
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise RefusedInput(f"lm-evaluation-harness has no task {name!r}{hint} (own tasks: a file ending in .yaml)")


def scored(model: Any, settings: Settings, own: Mapping[str, Any], data: Path | None) -> dict[str, Any]:
    """What the harness's ``evaluate`` returns, with every item.

    Its ``simple_evaluate`` does the same, and asks this machine for a description, which takes seconds.

    Args:
        own: configurations of own tasks, by the path that ``settings.tasks`` has.
        data: a folder with data sets under the names that they have on the hub.

    Raises:
        RefusedInput: a task does not exist, or its data are not there.
    """
    from lm_eval.evaluator import evaluate

    names = [name for name in settings.tasks if name not in own]
    refuse_unknown(names)
    with _data(names, own, data):
        loaded = _loaded([own.get(name, name) for name in settings.tasks], settings, data)
        found: dict[str, Any] = evaluate(
            lm=model,
            task_dict=loaded,
            limit=settings.limit,
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=settings.chat,
            fewshot_as_multiturn=settings.chat,
        )
    return found


def _loaded(specs: list[Any], settings: Settings, data: Path | None) -> Any:
    """Tasks with their data, the settings' number of examples, and seeded."""
    import numpy as np
    import torch

    random.seed(settings.seed)
    np.random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    try:
        found = _manager(shipped=any(isinstance(spec, str) for spec in specs)).load(specs)
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        where = "on the hub" if data is None else f"in {data}"
        raise RefusedInput(f"a task's data cannot be read {where}: {_first_line(error)}") from error
    for task in found["tasks"].values():
        own = task.get_config("num_fewshot")
        if settings.few_shot is not None and own != 0:  # 0 = the task's authors allow no examples
            task.set_config(key="num_fewshot", value=settings.few_shot)
        elif own is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=settings.seed)
    return found


@contextmanager
def _data(names: Sequence[str], own: Mapping[str, Any], data: Path | None) -> Iterator[None]:
    """While it lasts, ``cais/mmlu`` is the folder DATA/cais/mmlu, and NLTK looks into DATA/nltk_data.

    ``datasets`` takes a folder of the current directory before a name on the hub.
    """
    import nltk

    if data is not None:
        nltk.data.path.insert(0, str(data.resolve() / "nltk_data"))
    try:
        if any("ifeval" in name for name in names) or any("instruction_id_list" in str(c) for c in own.values()):
            _need_punkt(data)
        with chdir(data if data is not None else Path.cwd()):
            yield
    finally:
        if data is not None:
            nltk.data.path.pop(0)


def _need_punkt(data: Path | None) -> None:
    """IFEval counts sentences with NLTK, which would fetch what it lacks.

    Raises:
        RefusedInput: it may not, and the files are not in the user's folder.
    """
    import nltk

    try:
        nltk.data.find(PUNKT)
    except LookupError:
        if data is None:
            return
        raise RefusedInput(
            f"IFEval needs NLTK's sentence splitter: put its punkt_tab into {data / 'nltk_data' / PUNKT}"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
