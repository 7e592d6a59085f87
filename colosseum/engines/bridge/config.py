"""What a Megatron-Bridge launch builds for a resolved recipe, as the tree of calls that ``calls_start.py`` makes.

Names are those of the dataclasses of Megatron-Bridge 0.6. Their defaults are a small GPT-2's: every field that a recipe
sets is given. ``comm_overlap`` is not used: where it is set, Bridge turns overlaps on that a recipe has off; the fields
of the model and of the optimizer take them. The weight decay that counts is the scheduler's, and ``mixed_precision``
writes each of its fields over those of the same name of model, optimizer and ddp.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from colosseum.engines.calls import ACTIVATIONS, DTYPES, Node, call, mixed_precision, setting
from colosseum.engines.foreign import CONTINUED, RUN, loads_optimizer, minutes, source_folder, total_steps
from colosseum.recipe import derived
from colosseum.recipe.schema import Model, Recipe
from colosseum.recipe.source import Fresh
from colosseum.rundir import checkpoint_folder
from colosseum.units import parse_duration_s

TRAINING = "megatron.bridge.training"
CONFIG = f"{TRAINING}.config"
TRAIN = {"cpt": f"{TRAINING}.pretrain:pretrain", "sft": f"{TRAINING}.finetune:finetune"}
YARN = {
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_mscale": None,
    "yarn_mscale_all_dim": None,
    "yarn_correction_range_round_to_int": True,
}
"""Constants of arXiv:2309.00071, as our runtime's."""


def launch_tree(recipe: Recipe) -> Node:
    """The outermost call."""
    container = call(
        f"{CONFIG}:ConfigContainer",
        model=call("megatron.bridge.models.gpt_provider:GPTModelProvider", **_model(recipe)),
        train=_train(recipe),
        validation=call(
            "megatron.training.config:ValidationConfig",
            eval_interval=recipe.train.val_every_steps,
            eval_iters=recipe.train.val_steps,
        ),
        optimizer=_optimizer(recipe),
        scheduler=_scheduler(recipe),
        ddp=_ddp(recipe),
        mixed_precision=_precision(recipe),
        dataset=_rows(recipe) if recipe.task.kind == "sft" else _blend(recipe),
        tokenizer=_tokenizer(recipe),
        checkpoint=_checkpoint(recipe),
        logger=call(
            f"{CONFIG}:LoggerConfig",
            log_interval=recipe.train.log_every_steps,
            log_throughput=True,
            tensorboard_dir=RUN.tensorboard.name,
        ),
        rng=call("megatron.training.config:RNGConfig", seed=recipe.train.seed),
        dist=call(
            f"{CONFIG}:DistributedInitConfig",
            distributed_timeout_minutes=minutes(parse_duration_s(recipe.stability.hang_timeout)),
        ),
        rerun_state_machine=call(
            f"{CONFIG}:RerunStateMachineConfig", check_for_nan_in_loss=recipe.stability.mode == "act"
        ),
        peft=_adapters(recipe),
    )
    step = {"name": f"{TRAINING}.gpt_step:forward_step"}
    return call(TRAIN[recipe.task.kind], config=container, forward_step_func=step)


# --- the model ---------------------------------------------------------------------------------------------------


def _model(recipe: Recipe) -> Node:
    model, fusion = recipe.model, recipe.fusion
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.query_groups,
        "kv_channels": model.head_dim,
        "activation_func": ACTIVATIONS[model.activation_func],
        "gated_linear_unit": model.gated_linear_unit,
        "normalization": model.normalization,
        "layernorm_zero_centered_gamma": model.layernorm_zero_centered_gamma,
        "layernorm_epsilon": model.layernorm_epsilon,
        "add_bias_linear": model.add_bias_linear,
        "add_qkv_bias": model.add_qkv_bias,
        "qk_layernorm": model.qk_layernorm,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "rotary_percent": model.rotary_percent,
        "rotary_base": model.rope_base,
        **_positions(model),
        "seq_length": recipe.batch.seq_length,
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
        "init_method_std": model.init_method_std,
        "make_vocab_size_divisible_by": model.make_vocab_size_divisible_by,
        "vocab_size": model.padded_vocab(int(recipe.parallelism.tp)),
        "should_pad_vocab": False,
        **_layout(recipe),
        **_recompute(recipe),
        "apply_rope_fusion": fusion.rope,
        "cross_entropy_loss_fusion": fusion.cross_entropy,
        "cross_entropy_fusion_impl": "te" if fusion.cross_entropy else "native",
        "gradient_accumulation_fusion": fusion.gradient_accumulation,
        "attention_softmax_in_fp32": True,
        "masked_softmax_fusion": True,
        "bias_dropout_fusion": True,
        "bias_activation_fusion": model.is_swiglu,
        "persist_layer_norm": True,
        "calculate_per_token_loss": True,  # as our runtime: the mean of all tokens of a step
        "deterministic_mode": recipe.train.deterministic,
    }


def _positions(model: Model) -> Node:
    kind, factor = model.rope_scaling_type, model.rope_scaling
    found: Node = {"position_embedding_type": model.position_embedding_type}
    if factor is None:
        return found
    if kind == "linear":
        return {**found, "seq_len_interpolation_factor": factor}
    if kind == "llama3":
        return {**found, "rope_scaling": True, "rope_scaling_factor": factor}
    longest = model.original_max_position_embeddings
    found |= {"position_embedding_type": "yarn", "yarn_rotary_scaling_factor": factor}
    return {**found, "yarn_original_max_position_embeddings": longest, **YARN}


def _layout(recipe: Recipe) -> Node:
    par, overlap = recipe.parallelism, recipe.overlap
    found: Node = {
        "tensor_model_parallel_size": par.tp,
        "pipeline_model_parallel_size": par.pp,
        "virtual_pipeline_model_parallel_size": None if par.vpp == 1 else par.vpp,
        "microbatch_group_size_per_vp_stage": par.microbatch_group_size_per_vp_stage,
        "context_parallel_size": par.cp,
        "sequence_parallel": par.sequence_parallel,
        "num_layers_in_first_pipeline_stage": par.first_stage_layers,
        "num_layers_in_last_pipeline_stage": par.last_stage_layers,
        "account_for_embedding_in_pipeline_split": par.account_for_embedding_in_pipeline_split,
        "account_for_loss_in_pipeline_split": par.account_for_loss_in_pipeline_split,
        "overlap_p2p_comm": overlap.p2p,
        "batch_p2p_comm": overlap.batch_p2p,
        "tp_comm_overlap": overlap.tp_comm,
        "defer_embedding_wgrad_compute": overlap.defer_embedding_wgrad_compute,
        "wgrad_deferral_limit": overlap.wgrad_deferral_limit,
    }
    if overlap.tp_comm:
        found |= {"tp_comm_overlap_cfg": overlap.tp_comm_cfg, "tp_comm_bootstrap_backend": "nccl"}
    return found


def _recompute(recipe: Recipe) -> Node:
    rec = recipe.recompute
    if rec.granularity == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": list(rec.modules)}
    if rec.granularity == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": rec.method,
            "recompute_num_layers": rec.num_layers,
        }
    return {}


def _precision(recipe: Recipe) -> Node:
    precision = recipe.precision
    return call(
        f"{TRAINING}.mixed_precision:MixedPrecisionConfig", **{precision.dtype: True}, **mixed_precision(precision)
    )


def _adapters(recipe: Recipe) -> Node | None:
    lora = recipe.lora
    if lora is None:
        return None
    targets = list(lora.targets)
    return call("megatron.bridge.peft.lora:LoRA", target_modules=targets, dim=lora.rank, alpha=lora.alpha)


# --- training ----------------------------------------------------------------------------------------------------


def _train(recipe: Recipe) -> Node:
    return call(
        f"{CONFIG}:TrainingConfig",
        train_iters=total_steps(recipe),
        global_batch_size=recipe.batch.gbs,
        micro_batch_size=recipe.batch.mbs,
        exit_signal_handler=True,  # of SIGTERM: saves and leaves with code 0
        manual_gc=True,
        manual_gc_interval=100,
    )


def _optimizer(recipe: Recipe) -> Node:
    opt, low = recipe.optimizer, {}
    if recipe.precision.moments_dtype == "bf16":
        low = {
            "use_precision_aware_optimizer": True,
            "exp_avg_dtype": DTYPES["bf16"],
            "exp_avg_sq_dtype": DTYPES["bf16"],
        }
    return call(
        f"{CONFIG}:OptimizerConfig",
        optimizer=opt.name,
        lr=opt.lr,
        min_lr=opt.min_lr,
        weight_decay=opt.weight_decay,
        adam_beta1=opt.beta1,
        adam_beta2=opt.beta2,
        adam_eps=opt.eps,
        clip_grad=opt.clip_grad,
        use_distributed_optimizer=opt.distributed,
        overlap_param_gather=recipe.overlap.param_gather,
        **low,
    )


def _scheduler(recipe: Recipe) -> Node:
    opt = recipe.optimizer
    wsd: Node = {}
    if opt.lr_schedule == "wsd":
        wsd = {"lr_wsd_decay_iters": opt.wsd_decay_steps, "lr_wsd_decay_style": opt.wsd_decay}
    return call(
        f"{CONFIG}:SchedulerConfig",
        lr_decay_style="WSD" if wsd else opt.lr_schedule,
        lr_decay_iters=opt.decay_steps or total_steps(recipe),
        lr_warmup_iters=derived.warmup_steps(recipe),
        **wsd,
        start_weight_decay=opt.weight_decay,
        end_weight_decay=opt.weight_decay,
    )


def _ddp(recipe: Recipe) -> Node:
    overlap = recipe.overlap
    return call(
        f"{CONFIG}:DistributedDataParallelConfig",
        overlap_grad_reduce=overlap.grad_reduce,
        overlap_param_gather=overlap.param_gather,
        use_distributed_optimizer=recipe.optimizer.distributed,
        check_for_nan_in_grad=recipe.stability.mode == "act",
        average_in_collective=False,  # the loss is divided by the tokens of all ranks
    )


# --- data --------------------------------------------------------------------------------------------------------


def _blend(recipe: Recipe) -> Node:
    data, masked = recipe.data, recipe.data.reset_attention_mask
    return call(
        f"{CONFIG}:GPTDatasetConfig",
        seq_length=recipe.batch.seq_length,
        random_seed=recipe.train.seed,
        blend=[[entry.path for entry in data.blend], [entry.weight for entry in data.blend]],
        split=data.split,
        path_to_cache=data.cache_dir or RUN.data_cache.name,
        eod_mask_loss=data.eod_mask_loss,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=masked,
        # Transformer Engine's causal mask needs none made; one of 16K x 16K a sample is slow.
        create_attention_mask=masked,
        skip_getting_attention_mask_from_dataset=not masked,
        dataloader_type="single",
        num_workers=2,
    )


def _rows(recipe: Recipe) -> Node:
    """Bridge finds training.jsonl and validation.jsonl in one folder."""
    task, data = recipe.task, recipe.data
    assert task.kind == "sft"
    assert data.train is not None
    if task.format == "chat":
        # With an explicit preprocessing Bridge takes the tokenizer's own chat template; these take our tokens.
        tokens = dict(task.chat_tokens.model_dump())
        how: Node = {
            "dataset_kwargs": {"chat": True, "use_hf_tokenizer_chat_template": False, "special_tokens": tokens}
        }
    else:
        pair = call(
            "megatron.bridge.data.sft_processing:PromptCompletionSFTPreprocessingConfig",
            prompt_column="input",
            completion_column="output",
            separator=" ",
            strip_whitespace=False,
        )
        how = {"preprocessing": pair}
    return call(
        "megatron.bridge.data.builders.gpt_sft:GPTSFTDatasetConfig",
        dataset_root=str(PurePosixPath(data.train).parent),
        seq_length=recipe.batch.seq_length,
        seed=recipe.train.seed,
        do_test=False,
        num_workers=task.num_workers,
        **how,
    )


def _tokenizer(recipe: Recipe) -> Node:
    """Token ids need no tokenizer; the null tokenizer's end of document is the last id."""
    tokenizer, arguments = recipe.tokenizer, dict[str, Any]()
    if tokenizer.kind == "null" or tokenizer.path is None:
        arguments = {"tokenizer_type": "NullTokenizer", "vocab_size": recipe.model.vocab_size}
    elif tokenizer.kind == "sentencepiece":
        arguments = {"tokenizer_type": "SentencePieceTokenizer", "tokenizer_model": tokenizer.path}
    else:  # Hugging Face's loader takes the folder
        folder = str(PurePosixPath(tokenizer.path).parent)
        arguments = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": folder}
    return call(f"{TRAINING}.tokenizers.config:TokenizerConfig", **arguments)


# --- checkpoints -------------------------------------------------------------------------------------------------


def _checkpoint(recipe: Recipe) -> Node:
    checkpoint, folder = recipe.checkpoint, RUN.checkpoints.name
    return call(
        f"{CONFIG}:CheckpointConfig",
        save=folder,
        load=folder,
        save_interval=checkpoint.every_steps,
        most_recent_k=-1 if checkpoint.keep_last is None else checkpoint.keep_last,
        ckpt_format=checkpoint.format,
        async_save=checkpoint.async_save,
        fully_parallel_load=True,
        # The frozen weights of adapters are in no checkpoint of the run itself.
        pretrained_checkpoint=None if recipe.lora is None else started_from(recipe),
    )


def first_words(recipe: Recipe) -> list[str]:
    """Words for ``calls_start.py`` of an attempt without a checkpoint of its own: what the run begins with."""
    if loads_optimizer(recipe):
        return [
            setting("config.checkpoint.load", CONTINUED),
            setting("config.checkpoint.exit_on_missing_checkpoint", True),
            setting("config.checkpoint.load_rng", "rng" in recipe.checkpoint.load),
            setting("config.scheduler.override_opt_param_scheduler", True),
        ]
    path = started_from(recipe)
    return [] if path is None else [setting("config.checkpoint.pretrained_checkpoint", path)]


def started_from(recipe: Recipe) -> str | None:
    """The folder of ``checkpoint.from``, or of one step in it."""
    if recipe.checkpoint.source == Fresh():
        return None
    folder, step = source_folder(recipe.checkpoint.source)
    return folder if step is None else str(checkpoint_folder(Path(folder), step))
