"""What both sides train: rows.jsonl, a chat template, tiny models, settings. No torch.

Also imported by make_figures.py, which runs where transformers and TRL are installed and megatron-core is not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from tests.checkpoint.hf import models

ROWS = Path(__file__).with_name("rows.jsonl")
"""Questions with an answer each; the first ``GBS * STEPS`` also with a rejected one."""
TOKENIZER = Path(__file__).parents[2] / "data" / "align" / "reference" / "tokenizer.json"
EOD = "<|endoftext|>"
TEMPLATE = (
    "{% for m in messages %}{{ '<extra_id_1>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<extra_id_2>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<extra_id_2>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<extra_id_1>assistant\\n' }}{% endif %}"
)
MODELS = ("llama3", "nemotron")
LAYERS = 4
GBS, STEPS = 8, 2
LR, BETAS, EPS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
BETA = 0.2


def _messages(*turns: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns)]


def _rows() -> list[dict[str, str]]:
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def chats() -> list[dict[str, Any]]:
    """Every third with a system text, every fourth of two questions."""
    asked: list[tuple[str, str]] = [(row["question"], row["answer"]) for row in _rows()]
    rows = []
    for n in range(GBS * STEPS):
        turns = [*asked[n], *asked[100 + n]] if n % 4 == 0 else [*asked[n]]
        system = [{"role": "system", "content": "Answer in as few words as you can."}] if n % 3 == 0 else []
        rows.append({"messages": system + _messages(*turns)})
    return rows


def pairs() -> list[dict[str, Any]]:
    rows = []
    for row in _rows()[: GBS * STEPS]:
        sides = {"chosen": row["answer"], "rejected": row["rejected"]}
        told = {side: [{"role": "assistant", "content": text}] for side, text in sides.items()}
        rows.append({"prompt": _messages(row["question"]), **told})
    return rows


def write_model(folder: Path, name: str) -> Path:
    """A Hugging Face folder with this case's tokenizer and template."""
    folder.mkdir(parents=True)
    config = {**models.CONFIGS[name], "num_hidden_layers": LAYERS, "bos_token_id": None, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(models.tensors(name, LAYERS), folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOD, "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
