"""README.md (model card) of an exported model: architecture, training data, how to serve it."""

from __future__ import annotations

from math import prod
from pathlib import Path

from colosseum.checkpoint.hf.config import Family
from colosseum.checkpoint.hf.mapping import parts
from colosseum.checkpoint.hf.origin import Origin
from colosseum.checkpoint.hf.text_files import Chat
from colosseum.checkpoint.metadata import CheckpointMetadata
from colosseum.rundir import latest_rows
from colosseum.units import format_count

SERVE = """## How to serve it

`DIR` is this folder.

```
vllm serve DIR                                    # vLLM
trtllm-serve DIR                                  # TensorRT-LLM
docker run --gpus all -p 8000:8000 -v DIR:/model -e NIM_MODEL_NAME=/model nvcr.io/nim/nvidia/llm-nim:latest   # NIM
```

Each answers the OpenAI API on port 8000: `/v1/completions`, and `/v1/chat/completions` where there is a chat template.
"""


def text(origin: Origin, metadata: CheckpointMetadata, family: Family, dtype: str, chat: Chat) -> str:
    """The text of the card; unknown facts are left out."""
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation", "---", f"# {_title(origin)}", ""]
    lines += [f"- {key}: {value}" for key, value in _facts(origin, metadata, family, dtype, chat)]
    if metadata.tokens_by_source:
        lines += ["", "## Tokens by source", "", "| source | tokens |", "|---|---|"]
        ordered = sorted(metadata.tokens_by_source.items())
        lines += [f"| {Path(name).name} | {tokens:,} |" for name, tokens in ordered]
    lines += ["", *SERVE.splitlines()]
    lines += [f"\nNote: {note}." for note in chat.notes]
    return "\n".join(lines) + "\n"


def _title(origin: Origin) -> str:
    return origin.recipe.name if origin.recipe is not None else origin.name


def _facts(
    origin: Origin, metadata: CheckpointMetadata, family: Family, dtype: str, chat: Chat
) -> list[tuple[str, str]]:
    model = origin.model
    count = sum(prod(shape) for part in parts(family, model) for shape in part.shapes)
    found = [
        ("architecture", family.architecture),
        ("parameters", f"{count:,} ({model.num_layers} layers, hidden size {model.hidden_size:,})"),
        ("dtype", dtype),
        ("vocabulary", f"{model.vocab_size:,}"),
        ("context", f"{model.max_position_embeddings or metadata.model.seq_length:,} tokens"),
    ]
    if chat.eos:
        found.append(("end-of-text token ids", ", ".join(map(str, chat.eos))))
    if origin.recipe is not None and origin.run is not None:
        found += [
            ("task", origin.recipe.task.kind),
            ("run", f"{metadata.run_id}, step {metadata.step:,}"),
            ("trained from", str(origin.recipe.checkpoint.source)),
            ("recipe", metadata.recipe_hash),
            ("training tokens, with earlier stages", format_count(metadata.consumed_tokens)),
        ]
        for kind, name in (("train", "training loss"), ("val", "validation loss")):
            rows = [row for row in latest_rows(origin.run.metrics, kind) if row["step"] <= metadata.step]
            if rows and isinstance(rows[-1].get("loss"), float):
                found.append((name, f"{rows[-1]['loss']:.4f} at step {rows[-1]['step']:,}"))
    else:
        found.append(("from run" if origin.architecture is None else "imported from", origin.name))
    found.append(("written by", ", ".join(f"{k} {v}" for k, v in sorted(metadata.versions.items()))))
    return found
