"""What the tests of evaluations share: tiny models that read bytes, and task data of our own in the hub's real format.

The questions are ours (CC0); only the fields are those of cais/mmlu and google/IFEval.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import yaml
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, processors

from colosseum.data.byte_tokenizer import write_byte_tokenizer
from tests.checkpoint.hf import models

SPECIAL = ("<s>", "</s>", "<extra_id_0>", "<extra_id_1>")
BOS, EOS = 256, 257
LENGTH = 4096
SUBJECTS = ("abstract_algebra", "astronomy")
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<extra_id_1>Assistant\n{% generation %}{{ m.content }}"
    "<extra_id_1>{% endgeneration %}{% else %}<extra_id_1>{{ m.role }}\n{{ m.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<extra_id_1>Assistant\n{% endif %}"
)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
"""A template of other models."""
TWICE = "<s><s>" + CHAT_TEMPLATE


def write_model(
    folder: Path,
    letter: str = "A",
    *,
    template: str | None = CHAT_TEMPLATE,
    bos: bool = False,
    named: bool = True,
) -> Path:
    """A Hugging Face folder with random weights whose tokens are bytes and which knows one thing: the answer is
    ``letter``. Its logit gets a constant, through the bias of the last norm.

    Args:
        bos: whether the tokenizer prepends BOS.
        named: whether tokenizer_config.json says which token BOS is.
    """
    change = {"max_position_embeddings": LENGTH, "bos_token_id": BOS, "eos_token_id": EOS}
    models.write(folder, "nemotron", shards=1, change=change)
    write_byte_tokenizer(folder / "tokenizer.json", SPECIAL)
    (known,) = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(letter).ids
    weights = load_file(folder / "model.safetensors")
    bias = weights["model.norm.bias"]
    weights["lm_head.weight"][known] += 6 * bias / (bias @ bias)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if bos:
        library = Tokenizer.from_file(str(folder / "tokenizer.json"))
        library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
        library.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    config |= {"bos_token": "<s>"} if named else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": BOS, "eos_token_id": [EOS]}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def mmlu_rows(subject: str) -> dict[str, list[dict[str, Any]]]:
    """Sums and planets, with the fields of cais/mmlu."""

    def row(number: int) -> dict[str, Any]:
        if subject == "abstract_algebra":
            question, right = f"What is {number} + {number + 1}?", 2 * number + 1
            choices = [str(right + shift) for shift in range(-(number % 4), 4 - number % 4)]
            return {"question": question, "subject": subject, "choices": choices, "answer": number % 4}
        names = ["Mercury", "Venus", "Earth", "Mars"]
        at = number % 4
        turned = names[at:] + names[:at]
        question = f"Which planet is number {1 + number % 4} from the Sun (form {number})?"
        return {"question": question, "subject": subject, "choices": turned, "answer": 0}

    return {"dev": [row(n) for n in range(5)], "validation": [row(5)], "test": [row(n) for n in range(6, 16)]}


IFEVAL = [
    {
        "key": 1,
        "prompt": "Name three planets. Do not use any commas.",
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{"num_words": None, "relation": None, "keywords": None}],
    },
    {
        "key": 2,
        "prompt": "What is a bond? Answer with at least 20 words and mention the word coupon.",
        "instruction_id_list": ["length_constraints:number_words", "keywords:existence"],
        "kwargs": [
            {"num_words": 20, "relation": "at least", "keywords": None},
            {"num_words": None, "relation": None, "keywords": ["coupon"]},
        ],
    },
    {
        "key": 3,
        "prompt": "Say hello in fewer than 5 sentences.",
        "instruction_id_list": ["length_constraints:number_sentences"],
        "kwargs": [{"num_sentences": 5, "relation": "less than"}],
    },
]


OWN: dict[str, dict[str, Any]] = {
    "choices": {
        "kind": "multiple_choice",
        "items": [
            {"question": "Which grade is the best?", "choices": ["A", "D"], "answer": "A", "tags": ["rating"]},
            {"question": "Which grade is a default?", "choices": ["A", "D"], "answer": "D", "tags": ["rating", "risk"]},
            {
                "question": "Qual è il voto migliore?",
                "choices": ["A", "D"],
                "answer": "A",
                "tags": ["rating"],
                "language": "it",
            },
        ],
    },
    "exact": {
        "kind": "exact_match",
        "max_tokens": 4,
        "items": [
            {"question": "Repeat the best grade four times.", "answer": ["x", "aaaa."], "tags": ["rating"]},
            {"question": "What is 2 + 2?", "answer": "4", "tags": ["sums"]},
        ],
    },
    "instructions": {
        "kind": "instructions",
        "max_tokens": 8,
        "items": [
            {"question": "Answer without commas.", "checks": [{"id": "punctuation:no_comma"}], "tags": ["form"]},
            {
                "question": "Mention the word coupon, without commas.",
                "checks": [
                    {"id": "punctuation:no_comma"},
                    {"id": "keywords:existence", "values": {"keywords": ["coupon"]}},
                ],
                "tags": ["content"],
            },
        ],
    },
}
"""Own tasks of each kind (CC0), whose right answers for a model that always says A are known."""


def write_own(folder: Path) -> tuple[str, ...]:
    """The files of ``OWN``."""
    folder.mkdir()
    for name, task in OWN.items():
        file = {"name": name, "licence": "CC0-1.0", **task}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(file, allow_unicode=True))
    return tuple(str(folder / f"{name}.yaml") for name in OWN)


def write_guides_task(folder: Path) -> Path:
    """The example of docs/guides/evaluate.md."""
    page = Path(__file__).parents[2] / "docs" / "guides" / "evaluate.md"
    (text,) = re.findall(r"```yaml\n(# finance\.yaml\n.*?)```", page.read_text(), re.DOTALL)
    (folder / "finance.yaml").write_text(text)
    return folder / "finance.yaml"


def write_run(runs: Path, name: str, checkpoints: dict[int, Path], parent: tuple[str, int] | None = None) -> Path:
    """A run folder with checkpoints that were imported: each is complete where it lies."""
    run = runs / name
    (run / "bundle").mkdir(parents=True)
    lineage = None if parent is None else {"run": parent[0], "step": parent[1]}
    (run / "bundle" / "manifest.json").write_text(json.dumps({"lineage": lineage}))
    for step, source in checkpoints.items():
        folder = run / "checkpoints" / f"iter_{step:07d}"
        shutil.copytree(source, folder)
        mark = json.loads((folder / "colosseum.json").read_text())
        (folder / "colosseum.json").write_text(json.dumps({**mark, "step": step}))
    return run


def write_data(folder: Path) -> Path:
    """A user's folder: data sets under their names on the hub, and NLTK's sentence splitter, untrained."""
    mmlu = folder / "cais" / "mmlu"
    configs = []
    for subject in SUBJECTS:
        for split, rows in mmlu_rows(subject).items():
            _jsonl(mmlu / subject / f"{split}.jsonl", rows)
        files = [{"split": s, "path": f"{subject}/{s}.jsonl"} for s in ("dev", "validation", "test")]
        configs.append({"config_name": subject, "data_files": files})
    (mmlu / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    _jsonl(folder / "google" / "IFEval" / "ifeval_input_data.jsonl", IFEVAL)
    punkt = folder / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    punkt.mkdir(parents=True)
    for name in ("abbrev_types.txt", "collocations.tab", "sent_starters.txt", "ortho_context.tab"):
        (punkt / name).write_text("")
    return folder


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
