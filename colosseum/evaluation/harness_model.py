"""A checkpoint of ours as a model of lm-evaluation-harness: its log-likelihoods and texts come from our runtime.

The ranks of a tensor- and pipeline-parallel checkpoint work as in ``colosseum generate``: no export is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from colosseum.evaluation.encoding import Encoding
from colosseum.runtime.generation.sampling import Sampling
from colosseum.runtime.generation.scoring import Text

if TYPE_CHECKING:
    from colosseum.runtime.generation.engine import Engine

DEFAULT_TOKENS = 256
"""Of an answer, where a task names no limit: as the harness's own models have it."""


class RuntimeModel(TemplateLM):  # type: ignore[misc]  # the harness has no types here
    """See the file's docstring. Requests are ``Instance`` objects of the harness."""

    def __init__(self, engine: Engine, encoding: Encoding, *, batch_size: int, seed: int) -> None:
        super().__init__()
        self._engine, self._encoding = engine, encoding
        self._batch_size, self._seed = batch_size, seed
        self.cut = 0
        """Requests whose beginning did not fit the model's sequence length."""

    # --- text and tokens -------------------------------------------------------------------------------------------

    @property
    def max_length(self) -> int:
        return self._encoding.seq_length

    @property
    def eot_token_id(self) -> int:
        return self._encoding.eod

    @property
    def prefix_token_id(self) -> int:
        """What a text without context is conditioned on."""
        return self._encoding.prefix

    @property
    def tokenizer_name(self) -> str:
        return self._encoding.name

    @property
    def special_ids(self) -> frozenset[int]:
        return self._encoding.special_ids

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return self._encoding.ids(string, bos=add_special_tokens is not False)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self._encoding.chat(chat_history, prefilled=not add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self._encoding.template if chat_template else ""

    # --- log-likelihoods -------------------------------------------------------------------------------------------

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        texts = {}
        for number, (_, context, continuation) in enumerate(requests):
            ids = [*context, *continuation]
            self.cut += len(ids) > self.max_length + 1
            ids = ids[-(self.max_length + 1) :]
            texts[number] = Text(ids=ids, start=max(1, len(ids) - len(continuation)))
        found = dict(self._engine.scores(texts, rows=self._batch_size))
        return [(sum(found[number].log_probs), found[number].greedy) for number in range(len(requests))]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts; longer ones than the model reads are cut into windows."""
        pieces: list[tuple[Any, list[int], list[int]]] = []
        counts = []
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0], add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            mine = [(None, *map(list, make_disjoint_window(window))) for window in windows]
            pieces += mine  # type: ignore[arg-type]
            counts.append(len(mine))
        scores = iter(self._loglikelihood_tokens(pieces))
        return [sum(next(scores)[0] for _ in range(count)) for count in counts]

    # --- texts -----------------------------------------------------------------------------------------------------

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers, without the string that ended them. Requests of one call share batches if their settings agree."""
        groups: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(place)
        found: dict[int, str] = {}
        for places in groups.values():
            found.update(self._generated({place: requests[place] for place in places}))
        return [found[place] for place in range(len(requests))]

    def _generated(self, requests: dict[int, Any]) -> dict[int, str]:
        """Answers to requests with the same settings."""
        settings = dict(normalize_gen_kwargs(next(iter(requests.values())).args[1], DEFAULT_TOKENS))
        tokens = min(int(settings["max_gen_toks"]), self.max_length - 1)
        until = [text for text in settings.get("until") or () if text]
        sampling = Sampling(
            max_tokens=tokens,
            temperature=float(settings.get("temperature") or 0.0) if settings.get("do_sample") else 0.0,
            top_p=float(settings.get("top_p") or 1.0),
            seed=self._seed,
        )
        room = max(self.max_length - tokens, self.max_length // 2)
        prompts, places = {}, {}
        for place, request in requests.items():
            ids = self.tok_encode(request.args[0])
            self.cut += len(ids) > room
            # Random numbers depend on the prompt's number: one that no batch and no restart changes.
            prompts[request.idx] = ids[-room:]
            places[request.idx] = place

        def ends(ids: list[int]) -> bool:
            return self._encoding.has_ended(ids, until)

        answers = self._engine.answers(prompts, sampling, ends, rows=self._batch_size)
        return {
            places[number]: postprocess_generated_text(self._encoding.text(ids, prompts[number][-1]), until, None)
            for number, ids in answers
        }
