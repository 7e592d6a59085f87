"""The figures that SFT and DPO are held against, computed by TRL in an environment of its own.

    python3 -m venv E && E/bin/pip install torch transformers trl safetensors tokenizers
    PYTHONPATH=. E/bin/python tests/runtime/oracle/make_figures.py

Figures of 2026-12-03: TRL 1.16.0, transformers 5.24.0, torch 2.13.0, on a CPU in FP32.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from tests.runtime.oracle import case

FIGURES = Path(__file__).with_name("figures.json")


class Kept(TrainerCallback):
    """Every logged row, whole."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "grad_norm" in logs:
            self.rows.append(dict(logs))


def settings(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": case.GBS,
        "max_steps": case.STEPS,
        "learning_rate": case.LR,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "optim": "adamw_torch",
        "adam_beta1": case.BETAS[0],
        "adam_beta2": case.BETAS[1],
        "adam_epsilon": case.EPS,
        "weight_decay": case.WEIGHT_DECAY,
        "max_grad_norm": case.CLIP,
        "logging_steps": 1,
        "logging_first_step": True,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "train_sampling_strategy": "sequential",
        "disable_tqdm": True,
        "max_length": None,
        "model_init_kwargs": None,
    }


def trained(kind: str, folder: Path) -> dict[str, Any]:
    """Ids and masks of every row, and what each step logs."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kept, losses = Kept(), []
    common: dict[str, Any] = {"model": model, "processing_class": tokenizer, "callbacks": [kept]}
    if kind == "sft":
        config = SFTConfig(**settings(folder), assistant_only_loss=True, shuffle_dataset=False)
        trainer: Any = SFTTrainer(**common, args=config, train_dataset=Dataset.from_list(case.chats()))
    else:
        config = DPOConfig(**settings(folder), beta=case.BETA, loss_type=["ipo" if kind == "ipo" else "sigmoid"])
        trainer = DPOTrainer(**common, args=config, train_dataset=Dataset.from_list(case.pairs()))
    compute = trainer.compute_loss

    def watched(*args: Any, **options: Any) -> Any:
        found = compute(*args, **options)
        losses.append(float((found[0] if isinstance(found, tuple) else found).detach()))
        return found

    trainer.compute_loss = watched
    assert isinstance(trainer._get_train_sampler(), SequentialSampler)
    rows = [sequences(kind, row) for row in trainer.train_dataset]
    trainer.train()
    wanted = ("grad_norm", "logps/chosen", "logps/rejected", "rewards/chosen", "rewards/rejected", "rewards/margins")
    steps = [
        {"loss": loss, **{name: float(row[name]) for name in wanted if name in row}}
        for loss, row in zip(losses, kept.rows, strict=True)
    ]
    return {"rows": rows, "steps": steps}


def sequences(kind: str, row: dict[str, Any]) -> list[list[Any]]:
    """``[ids, mask]`` of a row, or of both sides of a pair."""
    if kind == "sft":
        return [[row["input_ids"], [int(i != -100) for i in row["labels"]]]]
    prompt = row["prompt_ids"]
    return [[prompt + row[side], [0] * len(prompt) + [1] * len(row[side])] for side in ("chosen_ids", "rejected_ids")]


def main() -> None:
    found: dict[str, Any] = {}
    for name in case.MODELS:
        for kind in ("sft", "dpo", "ipo"):
            with tempfile.TemporaryDirectory() as root:
                its = trained(kind, case.write_model(Path(root) / name, name))
            found[f"{name}-{kind}"] = its["steps"]
            found[f"rows-{kind}"] = its["rows"]
            print(name, kind, its["steps"])
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(found.items()))
    FIGURES.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
