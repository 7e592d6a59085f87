"""Converts config.json of a Hugging Face model to the recipe's ``model`` section and back. No torch, no I/O.

transformers 5 writes ``rope_parameters`` and ``dtype``, transformers 4 wrote ``rope_theta``, ``rope_scaling``,
``partial_rotary_factor`` and ``torch_dtype``: both are read, the newer names are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from colosseum.errors import Fault, RefusedInput
from colosseum.recipe.schema import LLAMA3_OLD_CONTEXT, Model
from colosseum.recipe.wording import rule_of

WHERE = "config.json"
LLAMA3: dict[str, Any] = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": LLAMA3_OLD_CONTEXT,
}
"""megatron-core's ``RotaryEmbedding._apply_scaling`` knows these only."""
YARN: dict[str, Any] = {
    "beta_fast": 32,
    "beta_slow": 1,
    "truncate": True,
    "attention_factor": None,
    "mscale": None,
    "mscale_all_dim": None,
}
"""What the runtime computes YaRN with; transformers' defaults."""
SCALINGS: dict[str, dict[str, Any]] = {"llama3": LLAMA3, "linear": {}, "yarn": YARN}
"""Kinds of RoPE scaling that are computed, with the values that their other keys must have."""
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "relu2": "squared_relu"}
DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp32"}
"""float16 becomes fp32, which represents every float16 number exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An architecture of transformers that the runtime supports."""

    architecture: str
    model_type: str
    gated: bool
    normalization: str
    zero_centered: bool
    epsilon: str
    """The key of the norms' epsilon in config.json."""
    epsilon_default: float
    activation: str
    rotary_percent: float
    """Where the config does not say."""
    qkv_bias: bool = False
    qk_norm: bool = False
    windowed_by: str | None = None
    """The key that switches its sliding window on; None = ``sliding_window`` alone does."""


FAMILIES = (
    Family(
        architecture="LlamaForCausalLM",
        model_type="llama",
        gated=True,
        normalization="RMSNorm",
        zero_centered=False,
        epsilon="rms_norm_eps",
        epsilon_default=1e-6,
        activation="silu",
        rotary_percent=1.0,
    ),
    Family(
        architecture="MistralForCausalLM",
        model_type="mistral",
        gated=True,
        normalization="RMSNorm",
        zero_centered=False,
        epsilon="rms_norm_eps",
        epsilon_default=1e-6,
        activation="silu",
        rotary_percent=1.0,
    ),
    Family(
        architecture="Qwen2ForCausalLM",
        model_type="qwen2",
        gated=True,
        normalization="RMSNorm",
        zero_centered=False,
        epsilon="rms_norm_eps",
        epsilon_default=1e-6,
        activation="silu",
        rotary_percent=1.0,
        qkv_bias=True,
        windowed_by="use_sliding_window",
    ),
    Family(
        architecture="Qwen3ForCausalLM",
        model_type="qwen3",
        gated=True,
        normalization="RMSNorm",
        zero_centered=False,
        epsilon="rms_norm_eps",
        epsilon_default=1e-6,
        activation="silu",
        rotary_percent=1.0,
        qk_norm=True,
        windowed_by="use_sliding_window",
    ),
    Family(
        architecture="NemotronForCausalLM",
        model_type="nemotron",
        gated=False,
        normalization="LayerNorm",
        zero_centered=True,
        epsilon="norm_eps",
        epsilon_default=1e-5,
        activation="relu2",
        rotary_percent=0.5,
    ),
)
NAMES = ", ".join(f.architecture for f in FAMILIES)


def family_named(architecture: str) -> Family | None:
    return next((f for f in FAMILIES if f.architecture == architecture), None)


def read_config(config: Mapping[str, Any]) -> tuple[Family, Model]:
    """The family and the model that a config.json describes.

    Raises:
        RefusedInput: the architecture or a setting is not supported; all faults at once.
    """
    family = _family(config)
    faults = [*_not_computed(config, family)]
    rope, more = _rope(config, family)
    faults += more
    values = {**_sizes(config, family), **rope}
    missing = [k for k in ("num_layers", "hidden_size", "num_attention_heads", "vocab_size") if values[k] is None]
    faults += [_fault(_THEIRS[key], None, "is missing") for key in missing]
    if faults:
        raise RefusedInput(faults)
    theirs = {**_THEIRS, "layernorm_epsilon": family.epsilon}
    try:
        return family, Model(**values)
    except ValidationError as error:
        raise RefusedInput(
            [_fault(theirs.get(str(e["loc"][0]), str(e["loc"][0])), e["input"], rule_of(e)) for e in error.errors()]
        ) from error


_THEIRS = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
    "ffn_hidden_size": "intermediate_size",
    "num_query_groups": "num_key_value_heads",
    "kv_channels": "head_dim",
    "rope_base": "rope_theta",
    "rope_scaling": "rope_scaling.factor",
    "rotary_percent": "partial_rotary_factor",
    "init_method_std": "initializer_range",
}


def _fault(path: str, value: Any, rule: str, nearest: tuple[Any, ...] = ()) -> Fault:
    return Fault(path=path, value=value, rule=rule, nearest=nearest, where=WHERE)


def _family(config: Mapping[str, Any]) -> Family:
    named = config.get("architectures") or []
    name = str(named[0]) if isinstance(named, list) and named else ""
    found = family_named(name) or next(
        (f for f in FAMILIES if not name and f.model_type == config.get("model_type")), None
    )
    if found is None:
        named = name or config.get("model_type")
        raise RefusedInput([_fault("architectures", named, f"is not supported; supported: {NAMES}")])
    return found


def _not_computed(config: Mapping[str, Any], family: Family) -> list[Fault]:
    faults = []
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            faults.append(_fault(key, config[key], "biases in linear layers are not supported", (False,)))
    if config.get("sliding_window") is not None and (family.windowed_by is None or config.get(family.windowed_by)):
        rule = "sliding-window attention is not supported"
        faults.append(_fault("sliding_window", config["sliding_window"], rule, (None,)))
    if config.get("quantization_config") is not None:
        faults.append(_fault("quantization_config", "…", "quantized weights are not supported: use the original model"))
    activation = config.get("hidden_act", family.activation)
    if str(activation) not in ACTIVATIONS:
        faults.append(_fault("hidden_act", activation, "is not supported", tuple(ACTIVATIONS)))
    return faults


def _sizes(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    activation = config.get("hidden_act", family.activation)
    return {
        "num_layers": config.get("num_hidden_layers"),
        "hidden_size": config.get("hidden_size"),
        "ffn_hidden_size": config.get("intermediate_size"),
        "num_attention_heads": config.get("num_attention_heads"),
        "num_query_groups": config.get("num_key_value_heads"),
        "kv_channels": config.get("head_dim"),
        "vocab_size": config.get("vocab_size"),
        "activation_func": ACTIVATIONS.get(str(activation), "silu"),
        "gated_linear_unit": family.gated,
        "normalization": family.normalization,
        "layernorm_zero_centered_gamma": family.zero_centered,
        "layernorm_epsilon": config.get(family.epsilon, family.epsilon_default),
        "add_bias_linear": False,
        "add_qkv_bias": family.qkv_bias,
        "qk_layernorm": family.qk_norm,
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "position_embedding_type": "rope",
        "max_position_embeddings": config.get("max_position_embeddings"),
        "attention_dropout": config.get("attention_dropout") or 0.0,
        "init_method_std": config.get("initializer_range") or 0.02,
    }


# --- RoPE --------------------------------------------------------------------------------------------------------


def _rope(config: Mapping[str, Any], family: Family) -> tuple[dict[str, Any], list[Fault]]:
    """The RoPE fields of the model section, and the settings that are not supported."""
    place, rope = "rope_parameters", config.get("rope_parameters")
    if rope is None:
        place, rope = "rope_scaling", config.get("rope_scaling")
    rope = rope if isinstance(rope, Mapping) else {}
    base = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", family.rotary_percent))
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    faults = []
    if isinstance(base, bool) or not isinstance(base, int | float) or base % 1 != 0:  # NaN and inf too
        faults.append(_fault("rope_theta", base, "must be an integer (a limit of megatron-core)"))
    fields = {"rope_base": base, "rotary_percent": share, "rope_scaling": None}
    if not faults:
        fields["rope_base"] = int(base)
    if kind == "default":
        return fields, faults
    if kind not in SCALINGS:
        rule = f"this type of RoPE is not supported; supported: default, {', '.join(SCALINGS)}"
        return fields, [*faults, _fault(f"{place}.rope_type", kind, rule, ("default", *SCALINGS))]
    factor = rope.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        faults.append(_fault(f"{place}.factor", factor, "must be a number"))
    else:
        fields |= {"rope_scaling": factor, "rope_scaling_type": kind}
    for key, value in SCALINGS[kind].items():
        if (found := rope.get(key, value)) != value:
            rule = f"megatron-core supports only one value for RoPE scaling of type {kind}"
            faults.append(_fault(f"{place}.{key}", found, rule, (value,)))
    if kind == "yarn":
        old = rope.get("original_max_position_embeddings", config.get("max_position_embeddings"))
        fields["original_max_position_embeddings"] = old
        if fields["rotary_percent"] != 1.0:
            rule = "yarn is supported on all channels of a head only"
            faults.append(_fault("partial_rotary_factor", fields["rotary_percent"], rule, (1.0,)))
    return fields, faults


# --- export ------------------------------------------------------------------------------------------------------


def family_of(model: Model, architecture: str | None = None) -> Family:
    """The family that ``model`` can be exported as: the one it was imported from, else the first that fits.

    Raises:
        RefusedInput: none fits; with the reasons for each.
    """
    against = {f.architecture: _against(model, f) for f in FAMILIES}
    fitting = [f for f in FAMILIES if not against[f.architecture]]
    if not fitting:
        why = "; ".join(
            f"{name}: {', '.join(found)}" for name, found in against.items() if name != "MistralForCausalLM"
        )
        raise RefusedInput(f"no supported architecture of transformers matches this model ({why})")
    return next((f for f in fitting if f.architecture == architecture), fitting[0])


def _against(model: Model, family: Family) -> list[str]:
    wanted = {
        "gated_linear_unit": family.gated,
        "normalization": family.normalization,
        "layernorm_zero_centered_gamma": family.zero_centered,
        "add_bias_linear": False,
        "add_qkv_bias": family.qkv_bias,
        "qk_layernorm": family.qk_norm,
        "position_embedding_type": "rope",
    }
    found = [f"needs {k} {v}" for k, v in wanted.items() if getattr(model, k) != v]
    if family.rotary_percent == 1.0 and model.rotary_percent != 1.0:
        found.append("needs rotary_percent 1.0")
    return found


def write_config(
    family: Family, model: Model, *, seq_length: int, dtype: str, bos: int | None, eos: list[int]
) -> dict[str, Any]:
    """config.json of a model.

    Args:
        seq_length: used as the longest sequence if the model section has none.
        dtype: dtype of the weights: bf16 or fp32.
        eos: end-of-text token ids; empty = unknown.
    """
    rope: dict[str, Any] = {"rope_theta": float(model.rope_base), "rope_type": "default"}
    if model.rope_scaling is not None:
        rope |= {"rope_type": model.rope_scaling_type, "factor": model.rope_scaling}
        if model.rope_scaling_type == "llama3":
            rope |= LLAMA3
        elif model.rope_scaling_type == "yarn":
            rope["original_max_position_embeddings"] = model.original_max_position_embeddings
    if family.rotary_percent != 1.0:
        rope["partial_rotary_factor"] = model.rotary_percent
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == model.activation_func)
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.query_groups,
        "head_dim": model.head_dim,
        "hidden_act": activation,
        family.epsilon: model.layernorm_epsilon,
        "max_position_embeddings": model.max_position_embeddings or seq_length,
        "initializer_range": model.init_method_std,
        "attention_dropout": model.attention_dropout,
        "tie_word_embeddings": model.tied_embeddings,
        "rope_parameters": rope,
        "bos_token_id": bos,
        "eos_token_id": eos[0] if len(eos) == 1 else (eos or None),
        "use_cache": True,
        "dtype": {"bf16": "bfloat16", "fp32": "float32"}[dtype],
    }
    if family.windowed_by is not None:
        config |= {family.windowed_by: False, "sliding_window": None}
    elif family.model_type == "mistral":
        config["sliding_window"] = None
    else:
        config |= {"attention_bias": False, "mlp_bias": False}
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = model.rotary_percent  # transformers 4 and vLLM read it here
    return config
