"""The Hydra configuration of NeMo 1.x and NeMo-Aligner for a resolved recipe: what stands beside their own templates.

Templates: NeMo's examples/nlp/language_modeling/conf/megatron_gpt_config.yaml (2.2, the last with NeMo 1.x scripts) and
NeMo-Aligner 0.7's examples/nlp/gpt/conf/gpt_sft.yaml and gpt_dpo.yaml. NeMo 1.x copies model keys that megatron-core's
TransformerConfig has by the same name, also those the template lacks. An alignment's architecture is its checkpoint's.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from colosseum.engines.foreign import RUN, held_steps, source_folder, total_steps
from colosseum.recipe.derived import nodes_and_ranks, steps_per_epoch, warmup_steps
from colosseum.recipe.schema import Model, Recipe
from colosseum.recipe.source import Fresh, FromRun
from colosseum.recipe.tasks import ChatTokens, SftTask
from colosseum.units import parse_duration_s

LOGS = "nemo"
"""NeMo's log folder inside the run; it moves old files of its log folder aside, so ours must not lie there."""
PREFIX = "model"
"""Name of the .nemo that a finished run leaves in its checkpoint folder."""
ACTIVATIONS = {
    ("squared_relu", False): "squared-relu",
    ("gelu", False): "gelu",
    ("silu", True): "fast-swiglu",
    ("gelu", True): "fast-geglu",
}
SCHEDULES = {"cosine": "CosineAnnealing", "constant": "WarmupPolicy"}

Config = dict[str, Any]


def config(recipe: Recipe) -> Config:
    """All keys that are set, nested."""
    if recipe.task.kind == "cpt":
        return _cpt(recipe)
    return _sft(recipe) if recipe.task.kind == "sft" else _dpo(recipe)


def restored(recipe: Recipe) -> str | None:
    """Where the first weights are: a .nemo file or folder. A run of ours leaves one when it is complete."""
    source = recipe.checkpoint.source
    if source == Fresh():
        return None
    if not isinstance(source, FromRun):
        return str(source)
    run = str(PurePosixPath(source_folder(source)[0]).parent)
    return f"{run}/{LOGS}/checkpoints/{PREFIX}.nemo"


# --- continued pretraining ---------------------------------------------------------------------------------------


def _cpt(recipe: Recipe) -> Config:
    train = recipe.train
    return {
        "name": recipe.name,
        "trainer": {
            **_trainer(recipe),
            "max_steps": total_steps(recipe),
            "max_epochs": -1,
            "val_check_interval": train.val_every_steps,
            "limit_val_batches": train.val_steps,
            "log_every_n_steps": train.log_every_steps,
            "gradient_clip_val": recipe.optimizer.clip_grad,
            "enable_model_summary": False,
        },
        "exp_manager": _experiment(recipe),
        "model": {
            **_batch(recipe),
            "restore_from_path": restored(recipe),
            "max_position_embeddings": recipe.model.max_position_embeddings or recipe.batch.seq_length,
            **_architecture(recipe),
            **_layout(recipe),
            **_kernels(recipe),
            **_fp8(recipe),
            "tokenizer": _tokenizer(recipe),
            "data": _blend(recipe),
            "optim": _optimizer(recipe, "mcore_distributed_optim"),
            "gc_interval": 100,
        },
    }


def _architecture(recipe: Recipe) -> Config:
    model = recipe.model
    norm = {"LayerNorm": "layernorm1p" if model.layernorm_zero_centered_gamma else "layernorm", "RMSNorm": "rmsnorm"}
    found: Config = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.query_groups,
        "kv_channels": model.head_dim,
        "activation": ACTIVATIONS[model.activation_func, model.gated_linear_unit],
        "normalization": norm[model.normalization],
        "layernorm_epsilon": model.layernorm_epsilon,
        "bias": model.add_bias_linear,
        "qkv_bias": model.add_qkv_bias,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "position_embedding_type": model.position_embedding_type,
        "rotary_percentage": model.rotary_percent,
        "rotary_base": model.rope_base,
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
        "init_method_std": model.init_method_std,
        "make_vocab_size_divisible_by": model.make_vocab_size_divisible_by,
        "override_vocab_size": model.padded_vocab(int(recipe.parallelism.tp)),
    }
    return {**found, **_rope_scaling(model)}


def _rope_scaling(model: Model) -> Config:
    if model.rope_scaling is None:
        return {"scale_positional_embedding": False}
    if model.rope_scaling_type == "linear":
        return {"scale_positional_embedding": False, "seq_len_interpolation_factor": model.rope_scaling}
    return {"scale_positional_embedding": True, "scale_factor": model.rope_scaling}


def _tokenizer(recipe: Recipe) -> Config:
    """NeMo takes the end of document from it."""
    tokenizer = recipe.tokenizer
    assert tokenizer.path is not None
    if tokenizer.kind == "sentencepiece":
        return {"library": "sentencepiece", "type": None, "model": tokenizer.path}
    return {"library": "huggingface", "type": str(PurePosixPath(tokenizer.path).parent), "use_fast": True}


def _blend(recipe: Recipe) -> Config:
    data = recipe.data
    return {
        "data_prefix": [item for entry in data.blend for item in (entry.weight, entry.path)],
        "index_mapping_dir": data.cache_dir or RUN.data_cache.name,
        "splits_string": data.split,
        "data_impl": "mmap",
        "seq_length": recipe.batch.seq_length,
        "eod_mask_loss": data.eod_mask_loss,
        "reset_position_ids": data.reset_position_ids,
        "reset_attention_mask": data.reset_attention_mask,
    }


# --- alignment ---------------------------------------------------------------------------------------------------


def _sft(recipe: Recipe) -> Config:
    task, data, batch = recipe.task, recipe.data, recipe.batch
    assert isinstance(task, SftTask)
    sizes: Config = {"micro_batch_size": batch.mbs, "global_batch_size": batch.gbs, "max_seq_length": batch.seq_length}
    if data.cache_dir is not None:
        sizes["index_mapping_dir"] = data.cache_dir
    return {
        "name": recipe.name,
        "trainer": {**_trainer(recipe), "sft": _aligner_trainer(recipe)},
        "exp_manager": _experiment(recipe),
        "model": {
            **_batch(recipe),
            "restore_from_path": restored(recipe),
            "answer_only_loss": True,
            "save_nemo_on_validation_end": False,
            "hidden_dropout": recipe.model.hidden_dropout,
            "attention_dropout": recipe.model.attention_dropout,
            **_layout(recipe),
            **_kernels(recipe),
            **_fp8(recipe),
            "data": {
                "chat": task.format == "chat",
                "chat_prompt_tokens": _chat_tokens(task.chat_tokens),
                "num_workers": task.num_workers,
                "train_ds": {"file_path": data.train, **sizes, "shuffle": task.shuffle, "drop_last": True},
                "validation_ds": {"file_path": data.validation, **sizes, "shuffle": False, "drop_last": True},
            },
            "optim": _optimizer(recipe, "distributed_fused_adam"),
        },
    }


def _dpo(recipe: Recipe) -> Config:
    task, data = recipe.task, recipe.data
    assert task.kind == "dpo"
    return {
        "trainer": {**_trainer(recipe), "dpo": _aligner_trainer(recipe)},
        "exp_manager": _experiment(recipe),
        "pretrained_checkpoint": {"restore_from_path": restored(recipe)},
        "model": {
            **_batch(recipe),
            "dpo": {
                "ref_policy_kl_penalty": task.beta,
                "preference_loss": task.loss,
                "preference_average_log_probs": task.average_log_probs,
                "sft_loss_weight": task.sft_weight,
                "log_prob_forward_micro_batch_size": task.logprob_mbs or recipe.batch.mbs,
            },
            "hidden_dropout": recipe.model.hidden_dropout,
            "attention_dropout": recipe.model.attention_dropout,
            **_layout(recipe),
            **_kernels(recipe),
            **_fp8(recipe),
            "data": {
                "data_impl": "jsonl",
                # NeMo-Aligner wants a test set and never reads it.
                "data_prefix": {"train": [data.train], "validation": [data.validation], "test": [data.validation]},
                "index_mapping_dir": data.cache_dir or RUN.data_cache.name,
                "seq_length": recipe.batch.seq_length,
                "num_workers": task.num_workers,
                "eod_mask_loss": data.eod_mask_loss,
                "reset_position_ids": data.reset_position_ids,
                "reset_attention_mask": data.reset_attention_mask,
            },
            "optim": _optimizer(recipe, "distributed_fused_adam"),
        },
    }


def _chat_tokens(tokens: ChatTokens) -> Config:
    return dict(tokens.model_dump())


def _aligner_trainer(recipe: Recipe) -> Config:
    """Epochs or steps: NeMo-Aligner ends at whichever comes first."""
    train, steps = recipe.train, total_steps(recipe)
    epochs = train.epochs
    if epochs is None:
        epochs = max(1, -(-steps // (steps_per_epoch(recipe) or 1)))  # each drops the rows that fill no batch
    return {
        "max_epochs": epochs,
        "max_steps": -1 if train.epochs is not None else steps,
        "val_check_interval": train.val_every_steps,
        "save_interval": recipe.checkpoint.every_steps,
        "limit_train_batches": 1.0,
        "limit_val_batches": train.val_steps,
        "gradient_clip_val": recipe.optimizer.clip_grad,
    }


# --- all tasks ---------------------------------------------------------------------------------------------------


def _trainer(recipe: Recipe) -> Config:
    nodes, devices = nodes_and_ranks(recipe)
    return {
        "num_nodes": nodes,
        "devices": devices,
        "accelerator": "gpu",
        "precision": "bf16" if recipe.precision.dtype == "bf16" else 32,
    }


def _experiment(recipe: Recipe) -> Config:
    checkpoint, alignment = recipe.checkpoint, recipe.task.kind != "cpt"
    keeping: Config = {
        "monitor": "val_loss",
        "mode": "min",
        "save_top_k": -1 if checkpoint.keep_last is None else checkpoint.keep_last,
        "save_nemo_on_train_end": True,
        "prefix": PREFIX,
    }
    if not alignment:
        keeping |= {"async_save": checkpoint.async_save, "every_n_train_steps": checkpoint.every_steps}
        keeping |= {"every_n_epochs": None}
    return {
        "explicit_log_dir": LOGS,
        "name": recipe.name,
        "max_time_per_run": _time_per_run(recipe),
        "resume_if_exists": True,
        "resume_ignore_no_checkpoint": True,
        "create_wandb_logger": False,
        "create_checkpoint_callback": True,
        "checkpoint_callback_params": keeping,
    }


def _time_per_run(recipe: Recipe) -> str:
    """DD:HH:MM:SS, with room for the last save: 15 minutes, or a quarter of a short limit."""
    limit = parse_duration_s(recipe.resources.time_limit)
    seconds = int(limit - min(900, limit / 4))
    hours, minutes = seconds // 3600, seconds // 60
    return f"{hours // 24:02d}:{hours % 24:02d}:{minutes % 60:02d}:{seconds % 60:02d}"


def _batch(recipe: Recipe) -> Config:
    return {
        "mcore_gpt": True,
        "transformer_engine": True,
        "megatron_amp_O2": True,
        "seed": recipe.train.seed,
        "micro_batch_size": recipe.batch.mbs,
        "global_batch_size": recipe.batch.gbs,
        "encoder_seq_length": recipe.batch.seq_length,
    }


def _layout(recipe: Recipe) -> Config:
    par, rec = recipe.parallelism, recipe.recompute
    granularity = None if rec.granularity == "none" else rec.granularity
    found: Config = {
        "tensor_model_parallel_size": par.tp,
        "pipeline_model_parallel_size": par.pp,
        "virtual_pipeline_model_parallel_size": None if par.vpp == 1 else par.vpp,
        "context_parallel_size": par.cp,
        "sequence_parallel": par.sequence_parallel,
        "activations_checkpoint_granularity": granularity,
        "activations_checkpoint_method": rec.method if granularity == "full" else None,
        "activations_checkpoint_num_layers": rec.num_layers if granularity == "full" else None,
    }
    if par.account_for_embedding_in_pipeline_split and par.account_for_loss_in_pipeline_split:
        found |= {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    if par.microbatch_group_size_per_vp_stage is not None:
        found["microbatch_group_size_per_vp_stage"] = par.microbatch_group_size_per_vp_stage
    return found


def _kernels(recipe: Recipe) -> Config:
    overlap, fusion = recipe.overlap, recipe.fusion
    found: Config = {
        "overlap_p2p_comm": overlap.p2p,
        "batch_p2p_comm": overlap.batch_p2p,
        "ub_tp_comm_overlap": overlap.tp_comm,
        "defer_embedding_wgrad_compute": overlap.defer_embedding_wgrad_compute,
        "cross_entropy_loss_fusion": fusion.cross_entropy,
        "apply_rope_fusion": fusion.rope,
        "gradient_accumulation_fusion": fusion.gradient_accumulation,
        "bias_activation_fusion": recipe.model.is_swiglu,
        "deterministic_mode": recipe.train.deterministic,
    }
    if overlap.tp_comm:
        found["ub_tp_comm_bootstrap_backend"] = "nccl"
    if overlap.defer_embedding_wgrad_compute:
        found["wgrad_deferral_limit"] = overlap.wgrad_deferral_limit
    return found


def _fp8(recipe: Recipe) -> Config:
    precision = recipe.precision
    if precision.fp8 == "none":
        return {"fp8": False}
    return {
        "fp8": True,
        "fp8_e4m3": precision.fp8_format == "e4m3",
        "fp8_hybrid": precision.fp8_format == "hybrid",
        "fp8_margin": precision.fp8_margin,
        "fp8_interval": precision.fp8_interval,
        "fp8_amax_history_len": precision.fp8_amax_history_len,
        "fp8_amax_compute_algo": precision.fp8_amax_compute_algo,
        "fp8_params": precision.fp8_params,
        "fp8_wgrad": precision.fp8_wgrad,
    }


def _optimizer(recipe: Recipe, sharded: str) -> Config:
    opt, overlap = recipe.optimizer, recipe.overlap
    found: Config = {
        "name": sharded if opt.distributed else "fused_adam",
        "lr": opt.lr,
        "weight_decay": opt.weight_decay,
        "betas": [opt.beta1, opt.beta2],
        "eps": opt.eps,
        "sched": {
            "name": SCHEDULES[opt.lr_schedule],
            "warmup_steps": warmup_steps(recipe),
            "constant_steps": held_steps(recipe),
            "min_lr": opt.min_lr,
        },
    }
    if opt.lr_schedule == "constant":
        del found["sched"]["constant_steps"]
    if opt.distributed:
        found |= {"overlap_grad_sync": overlap.grad_reduce, "overlap_param_sync": overlap.param_gather}
        found |= {"grad_sync_dtype": recipe.precision.grad_reduce_dtype}
    return found
