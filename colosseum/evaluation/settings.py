"""Everything that a score depends on besides the weights: pinned before the start, recorded with the scores."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

from colosseum.recipe.base import Count, Section, Text, Whole

Backend = Literal["runtime", "transformers", "vllm"]


class Settings(Section):
    """Of one evaluation. Two evaluations with equal settings and weights give the same scores."""

    tasks: tuple[Text, ...]
    """Names of the harness, or YAML files of own tasks."""
    own_tasks: dict[str, str]
    """sha256 of each own task's file, by its path."""
    few_shot: Whole | None
    """Examples before each question; None = each task's own number."""
    chat: bool
    """Whether questions are rendered by the chat template."""
    chat_template: str
    """sha256 of the template; empty without ``chat``."""
    bos: bool
    """Whether a begin-of-text token is prepended (once)."""
    seed: Whole
    limit: Count | None
    """Items per task; None = all."""
    backend: Backend
    harness: Text
    """Version of lm-evaluation-harness."""

    def digest(self) -> str:
        """Names the evaluation's folder."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()
