"""What a NeMo 2 launch builds for a resolved recipe, as the tree of calls that ``calls_start.py`` makes.

Names and arguments are those of nemo_toolkit 2.7.3 and megatron-core; every one that has a default other than ours is
given. Weights of the model are a GPTConfig's: Nemotron and Llama shapes are instances of it.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from colosseum.engines.calls import ACTIVATIONS, DTYPES, Node, call, mixed_precision
from colosseum.engines.foreign import RUN, held_steps, total_steps
from colosseum.recipe.derived import nodes_and_ranks, warmup_steps
from colosseum.recipe.schema import Recipe
from colosseum.recipe.source import Fresh

LOGS = "nemo"
"""NeMo's log folder inside the run; its checkpoints lie in ``checkpoints`` below."""
LLM = "nemo.collections.llm"
LIGHTNING = "nemo.lightning"
SCHEDULES = {"cosine": "CosineAnnealingScheduler", "constant": "WarmupPolicyScheduler"}


def launch_tree(recipe: Recipe) -> Node:
    """The outermost call."""
    sft = recipe.task.kind == "sft"
    common = {
        "model": call(f"{LLM}:GPTModel", config=call(f"{LLM}:GPTConfig", **_model(recipe))),
        "data": _chat(recipe) if sft else _blend(recipe),
        "trainer": _trainer(recipe),
        "log": _log(recipe),
        "resume": _resume(recipe),
        "optim": _optimizer(recipe),
    }
    return call(f"{LLM}:finetune", **common, tokenizer="data") if sft else call(f"{LLM}:pretrain", **common)


def _model(recipe: Recipe) -> Node:
    model, par, fusion = recipe.model, recipe.parallelism, recipe.fusion
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
        "position_embedding_type": model.position_embedding_type,
        "rotary_percent": model.rotary_percent,
        "rotary_base": model.rope_base,
        "seq_len_interpolation_factor": model.rope_scaling,  # linear: another kind is refused
        "seq_length": max(recipe.batch.seq_length, model.max_position_embeddings or 0),
        "hidden_dropout": model.hidden_dropout,
        "attention_dropout": model.attention_dropout,
        "init_method_std": model.init_method_std,
        "make_vocab_size_divisible_by": model.make_vocab_size_divisible_by,
        "vocab_size": model.padded_vocab(int(par.tp)),
        "apply_rope_fusion": fusion.rope,
        "cross_entropy_loss_fusion": fusion.cross_entropy,
        "cross_entropy_fusion_impl": "te" if fusion.cross_entropy else "native",
        "gradient_accumulation_fusion": fusion.gradient_accumulation,
        "attention_softmax_in_fp32": True,
        "masked_softmax_fusion": True,
        "bias_dropout_fusion": True,
        "bias_activation_fusion": recipe.model.is_swiglu,
        "persist_layer_norm": True,
        "deterministic_mode": recipe.train.deterministic,
        **_recompute(recipe),
    }


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


# --- data --------------------------------------------------------------------------------------------------------


def _tokenizer(recipe: Recipe) -> Node:
    """Token ids need no tokenizer; the null tokenizer's end of document is the last id."""
    tokenizer, home = recipe.tokenizer, "nemo.collections.common.tokenizers"
    if tokenizer.kind == "null" or tokenizer.path is None:
        return call(f"{home}.null_tokenizer:NullTokenizer", vocab_size=recipe.model.vocab_size - 1)
    if tokenizer.kind == "sentencepiece":
        return call(f"{home}.sentencepiece_tokenizer:SentencePieceTokenizer", model_path=tokenizer.path)
    folder = str(PurePosixPath(tokenizer.path).parent)
    return call(f"{home}.huggingface.auto_tokenizer:AutoTokenizer", pretrained_model_name=folder, use_fast=True)


def _batch(recipe: Recipe) -> Node:
    return {
        "seq_length": recipe.batch.seq_length,
        "micro_batch_size": recipe.batch.mbs,
        "global_batch_size": recipe.batch.gbs,
        "seed": recipe.train.seed,
        "tokenizer": _tokenizer(recipe),
    }


def _blend(recipe: Recipe) -> Node:
    data = recipe.data
    return call(
        f"{LLM}:PreTrainingDataModule",
        paths=[item for entry in data.blend for item in (str(entry.weight), entry.path)],
        **_batch(recipe),
        num_workers=2,
        split=data.split,
        index_mapping_dir=data.cache_dir or RUN.data_cache.name,
        eod_mask_loss=data.eod_mask_loss,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=data.reset_attention_mask,
    )


def _chat(recipe: Recipe) -> Node:
    """NeMo finds training.jsonl and validation.jsonl in one folder."""
    task, data = recipe.task, recipe.data
    assert task.kind == "sft"
    assert data.train is not None
    kwargs: Node = {"special_tokens": dict(task.chat_tokens.model_dump())} if task.format == "chat" else {}
    return call(
        f"{LLM}:ChatDataModule" if task.format == "chat" else f"{LLM}:FineTuningDataModule",
        dataset_root=str(PurePosixPath(data.train).parent),
        **_batch(recipe),
        num_workers=task.num_workers,
        dataset_kwargs=kwargs,
    )


# --- training ----------------------------------------------------------------------------------------------------


def _trainer(recipe: Recipe) -> Node:
    train, (nodes, devices) = recipe.train, nodes_and_ranks(recipe)
    return call(
        f"{LIGHTNING}:Trainer",
        accelerator="gpu",
        num_nodes=nodes,
        devices=devices,
        max_steps=total_steps(recipe),
        val_check_interval=train.val_every_steps,
        limit_val_batches=train.val_steps,
        limit_test_batches=0,
        num_sanity_val_steps=0,
        log_every_n_steps=train.log_every_steps,
        accumulate_grad_batches=1,
        use_distributed_sampler=False,
        strategy=_strategy(recipe),
        plugins=_precision(recipe),
        callbacks=_callbacks(recipe),
    )


def _strategy(recipe: Recipe) -> Node:
    par, overlap, checkpoint = recipe.parallelism, recipe.overlap, recipe.checkpoint
    ddp = call(
        "megatron.core.distributed:DistributedDataParallelConfig",
        grad_reduce_in_fp32=recipe.precision.grad_reduce_dtype == "fp32",
        overlap_grad_reduce=overlap.grad_reduce,
        overlap_param_gather=overlap.param_gather,
        use_distributed_optimizer=recipe.optimizer.distributed,
        check_for_nan_in_grad=recipe.stability.mode == "act",
    )
    return call(
        f"{LIGHTNING}:MegatronStrategy",
        tensor_model_parallel_size=par.tp,
        pipeline_model_parallel_size=par.pp,
        virtual_pipeline_model_parallel_size=None if par.vpp == 1 else par.vpp,
        microbatch_group_size_per_vp_stage=par.microbatch_group_size_per_vp_stage,
        context_parallel_size=par.cp,
        sequence_parallel=par.sequence_parallel,
        num_layers_in_first_pipeline_stage=par.first_stage_layers,
        num_layers_in_last_pipeline_stage=par.last_stage_layers,
        account_for_embedding_in_pipeline_split=par.account_for_embedding_in_pipeline_split,
        account_for_loss_in_pipeline_split=par.account_for_loss_in_pipeline_split,
        pipeline_dtype=DTYPES[recipe.precision.dtype],
        ddp=ddp,
        gradient_as_bucket_view=True,
        save_ckpt_format=checkpoint.format,
        ckpt_async_save=checkpoint.async_save,
        ckpt_parallel_load=True,
        progress_interval=recipe.train.log_every_steps,
    )


def _precision(recipe: Recipe) -> Node:
    precision = "bf16-mixed" if recipe.precision.dtype == "bf16" else "32"
    return call(f"{LIGHTNING}:MegatronMixedPrecision", precision=precision, **mixed_precision(recipe.precision))


def _callbacks(recipe: Recipe) -> list[Node]:
    overlap, home = recipe.overlap, f"{LIGHTNING}.pytorch.callbacks"
    comm: Node = {
        "tp_comm_overlap": overlap.tp_comm,
        "overlap_p2p_comm": overlap.p2p,
        "batch_p2p_comm": overlap.batch_p2p,
        "overlap_grad_reduce": overlap.grad_reduce,
        "overlap_param_gather": overlap.param_gather,
        "defer_embedding_wgrad_compute": overlap.defer_embedding_wgrad_compute,
        # Its default, -1, is illegal where deferral is on.
        "wgrad_deferral_limit": overlap.wgrad_deferral_limit,
    }
    if overlap.tp_comm:
        comm["tp_comm_bootstrap_backend"] = "nccl"
    return [
        call(f"{home}.megatron_comm_overlap:MegatronCommOverlapCallback", **comm),
        call(f"{home}.garbage_collection:GarbageCollectionCallback", gc_interval_train=100, gc_interval_val=100),
        call(f"{home}:PreemptionCallback"),
        call("nemo.utils.exp_manager:TimingCallback"),
    ]


def _optimizer(recipe: Recipe) -> Node:
    opt, precision = recipe.optimizer, recipe.precision
    low = {}
    if precision.moments_dtype == "bf16":
        low = {
            "use_precision_aware_optimizer": True,
            "exp_avg_dtype": DTYPES["bf16"],
            "exp_avg_sq_dtype": DTYPES["bf16"],
        }
    config = call(
        "megatron.core.optimizer:OptimizerConfig",
        optimizer=opt.name,
        lr=opt.lr,
        min_lr=opt.min_lr,
        weight_decay=opt.weight_decay,
        adam_beta1=opt.beta1,
        adam_beta2=opt.beta2,
        adam_eps=opt.eps,
        clip_grad=opt.clip_grad,
        bf16=precision.dtype == "bf16",
        params_dtype=DTYPES[precision.dtype],
        use_distributed_optimizer=opt.distributed,
        **low,
    )
    steps = total_steps(recipe)
    rates: Node = {"max_steps": steps, "warmup_steps": warmup_steps(recipe), "min_lr": opt.min_lr}
    if opt.lr_schedule == "cosine":
        rates["constant_steps"] = held_steps(recipe)
    schedule = call(f"{LIGHTNING}.pytorch.optim:{SCHEDULES[opt.lr_schedule]}", **rates)
    return call(f"{LIGHTNING}:MegatronOptimizerModule", config=config, lr_scheduler=schedule)


def _log(recipe: Recipe) -> Node:
    checkpoint = recipe.checkpoint
    keeping = call(
        f"{LIGHTNING}:ModelCheckpoint",
        monitor="val_loss",
        mode="min",
        save_last=True,
        save_top_k=-1 if checkpoint.keep_last is None else checkpoint.keep_last,
        every_n_train_steps=checkpoint.every_steps,
        save_optim_on_train_end=True,
    )
    board = call("lightning.pytorch.loggers:TensorBoardLogger", save_dir=RUN.tensorboard.name, name="")
    return call(
        f"{LIGHTNING}:NeMoLogger",
        name=recipe.name,
        explicit_log_dir=LOGS,
        use_datetime_version=False,
        update_logger_directory=False,
        ckpt=keeping,
        tensorboard=board,
    )


def _resume(recipe: Recipe) -> Node:
    found: Node = {"resume_if_exists": True, "resume_ignore_no_checkpoint": True}
    if (path := restored(recipe)) is not None:
        found["restore_config"] = call(
            f"{LIGHTNING}:RestoreConfig",
            path=path,
            load_model_state=True,
            load_optim_state="optimizer" in recipe.checkpoint.load,
            load_artifacts=False,
        )
    return call(f"{LIGHTNING}:AutoResume", **found)


def restored(recipe: Recipe) -> str | None:
    """The NeMo 2 checkpoint folder that a run begins with: only a path says which."""
    source = recipe.checkpoint.source
    return None if source == Fresh() else str(source)
