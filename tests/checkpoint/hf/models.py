"""Tiny Hugging Face models, the same on every machine: weights from whole random numbers. Needs numpy and safetensors.

Also imported by oracle.py, which runs where transformers is installed and this package is not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

VOCAB = 509
SPECIAL = ("<s>", "</s>", "<extra_id_0>", "<extra_id_1>", "<extra_id_2>")
TOKENS = tuple(int(t) for t in np.random.default_rng(3).integers(10, VOCAB, 40))
"""What the figures were computed for."""
SHOWN = (0, 17, 39)
"""Positions whose logits are kept."""
NEW = 12
"""Tokens generated."""
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
}
_LLAMA3 = {
    "rope_theta": 500000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama3": {
        **_SIZES,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_parameters": _LLAMA3,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
    },
    "llama2": {  # as transformers 4 wrote it; tied, and heads narrower than hidden_size / heads
        **_SIZES,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "head_dim": 8,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    },
    "mistral": {
        **_SIZES,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "linear", "factor": 4.0},
        "sliding_window": None,
        "torch_dtype": "float32",
    },
    "qwen2": {  # a window that is switched off; tied, as small ones are
        **_SIZES,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": 32,
        "max_window_layers": 2,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    },
    "qwen3": {
        **_SIZES,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
        "head_dim": 32,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "torch_dtype": "float32",
    },
    "nemotron": {
        **_SIZES,
        "architectures": ["NemotronForCausalLM"],
        "model_type": "nemotron",
        "hidden_act": "relu2",
        "norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "torch_dtype": "float32",
    },
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensors as transformers names them, written down here anew."""
    h, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    d = config.get("head_dim") or h // config["num_attention_heads"]
    q, kv = d * config["num_attention_heads"], d * config["num_key_value_heads"]
    nemotron = config["model_type"] == "nemotron"
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, h)}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found |= {f"{at}{norm}.{w}": (h,) for w in (("weight", "bias") if nemotron else ("weight",))}
        for name, shape in {"q": (q, h), "k": (kv, h), "v": (kv, h), "o": (h, q)}.items():
            found[f"{at}self_attn.{name}_proj.weight"] = shape
            if config["model_type"] == "qwen2" and name != "o":
                found[f"{at}self_attn.{name}_proj.bias"] = shape[:1]
        if config["model_type"] == "qwen3":
            found |= {f"{at}self_attn.{name}_norm.weight": (d,) for name in "qk"}
        for name, shape in {"gate": (f, h), "up": (f, h), "down": (h, f)}.items():
            if not (nemotron and name == "gate"):
                found[f"{at}mlp.{name}_proj.weight"] = shape
    found |= {f"model.norm.{w}": (h,) for w in (("weight", "bias") if nemotron else ("weight",))}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (v, h)
    return found


def tensors(name: str, layers: int = 3) -> dict[str, Any]:
    """Weights in FP32; each is a multiple of 2^-14 below 1.1, so that BF16 does not hold them all."""
    config, rng = {**CONFIGS[name], "num_hidden_layers": layers}, np.random.default_rng(11)
    found = {}
    for key, shape in shapes(config).items():
        drawn = rng.integers(-2048, 2049, shape).astype(np.float32) / np.float32(16384)
        norm = "norm" in key and key.endswith("weight") and config["model_type"] != "nemotron"
        found[key] = drawn + np.float32(1) if norm else drawn
    return found


def write(folder: Path, name: str, *, shards: int = 3, change: dict[str, Any] | None = None) -> Path:
    """A model folder with its tokenizer; ``change`` is laid over config.json."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIGS[name], **(change or {})}))
    weights = tensors(name)
    names = sorted(weights)
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        where = {key: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, key in enumerate(names)}
        for file in set(where.values()):
            part = {key: weights[key] for key in names if where[key] == file}
            save_file(part, folder / file, metadata={"format": "pt"})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """One id a word: ``w5`` is 5."""
    vocabulary = {token: i for i, token in enumerate(SPECIAL)} | {f"w{i}": i for i in range(len(SPECIAL), VOCAB)}
    added = [
        {"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for i, t in enumerate(SPECIAL)
    ]
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w5"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": [1]}))
